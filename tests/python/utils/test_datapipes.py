"""Data pipes, which are not here: their names can be imported, and say at their use what to take."""

import subprocess
import sys

import pytest
import warptape as torch
from warptape.utils.data import DataChunk, DataLoader, IterDataPipe, MapDataPipe, functional_datapipe


def test_libraries_derive_from_pipes_and_test_for_them():
    class Lines(IterDataPipe[str]):
        pass

    assert not isinstance([1], IterDataPipe | MapDataPipe | DataChunk)
    assert issubclass(Lines, IterDataPipe) and torch.utils.data.IterDataPipe is IterDataPipe
    with pytest.raises(NotImplementedError, match=r"torch\.utils\.data\.IterDataPipe: .*IterableDataset"):
        Lines("file")


@pytest.mark.parametrize("use", [lambda: functional_datapipe("lines"), lambda: DataChunk([1]), MapDataPipe])
def test_use_says_what_to_take(use):
    with pytest.raises(NotImplementedError, match="data pipes are not here; use an IterableDataset"):
        use()


@pytest.mark.parametrize("name", ["datapipes.iter", "graph", "graph_settings"])
def test_modules_say_that_they_are_not_there(name):
    code = f"import warptape.torch; warptape.torch.install(); import torch.utils.data.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "data pipes are not supported" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_draws_one_number_a_pass(workers):
    generator = torch.Generator().manual_seed(3)
    list(DataLoader(range(4), num_workers=workers, generator=generator))
    other = torch.Generator().manual_seed(3)
    torch.empty((), dtype=torch.int64).random_(generator=other)
    assert torch.equal(generator.get_state(), other.get_state())
