"""Data pipes, which are not here: their names can be imported, and say at their use what to take."""

import importlib
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


@pytest.mark.parametrize("name", ["graph"])
def test_modules_say_that_they_are_not_there(name):
    code = f"import warptape.torch; warptape.torch.install(); import torch.utils.data.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "data pipes are not supported" in done.stderr.splitlines()[-1]


def test_functions_of_graphs_are_refused_at_their_use():
    settings = importlib.import_module("warptape.utils.data.graph_settings")
    with pytest.raises(NotImplementedError, match="apply_sharding"):
        settings.apply_sharding(None, 1, 0)
    pipes = importlib.import_module("warptape.utils.data.datapipes.iter")
    with pytest.raises(NotImplementedError, match="data pipes"):
        pipes.Batcher([], 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_draws_one_number_a_pass(workers):
    generator = torch.Generator().manual_seed(3)
    list(DataLoader(range(4), num_workers=workers, generator=generator))
    other = torch.Generator().manual_seed(3)
    torch.empty((), dtype=torch.int64).random_(generator=other)
    assert torch.equal(generator.get_state(), other.get_state())
