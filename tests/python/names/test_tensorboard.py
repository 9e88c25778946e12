"""SummaryWriter's files, read back by tensorboard itself."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import warptape as torch


def test_without_the_package_says_what_to_install():
    code = "import sys; sys.modules['tensorboard'] = None; import warptape.utils.tensorboard"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError" in done.stderr and "pip install tensorboard" in done.stderr


@pytest.fixture
def written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from warptape.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "run") as writer:
        for step in range(3):
            writer.add_scalar("loss", torch.tensor(step / 2, requires_grad=True), step)
        writer.add_scalars("both", {"a": 1, "b": torch.tensor([2.0])}, 7)
        writer.add_histogram("weights", torch.arange(6.0).bfloat16(), 1, bins=3)
        writer.add_text("note", "some *text*", 2)
        writer.add_image("dot", torch.ones(3, 2, 4), 3)
        writer.add_images("dots", np.zeros((2, 1, 2, 4), np.uint8), 3)
        with pytest.raises(ValueError, match="no element"):
            writer.add_histogram("nothing", torch.ones(0))
        with pytest.raises(ValueError, match="expected dims 'CHW'"):
            writer.add_image("bad", torch.ones(2, 4))
        with pytest.raises(AttributeError):
            writer.add_graph
        assert writer.get_logdir() == str(tmp_path / "run")
    found = {}
    for folder in (tmp_path / "run", tmp_path / "run/both_a", tmp_path / "run/both_b"):
        found[folder.name] = EventAccumulator(str(folder)).Reload()
    return found


def test_files_are_what_tensorboard_reads(written):
    run = written["run"]
    assert [(e.step, e.value) for e in run.Scalars("loss")] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert [(e.step, e.value) for e in written["both_b"].Scalars("both")] == [(7, 2.0)]
    histogram = run.Histograms("weights")[0].histogram_value
    assert (histogram.min, histogram.max, histogram.num, histogram.sum) == (0, 5, 6, 15)
    assert histogram.sum_squares == 55 and sum(histogram.bucket) == 6
    assert run.Tensors("note/text_summary")[0].tensor_proto.string_val == [b"some *text*"]
    sizes = {tag: (run.Images(tag)[0].width, run.Images(tag)[0].height) for tag in ("dot", "dots")}
    assert sizes == {"dot": (4, 2), "dots": (8, 2)}
