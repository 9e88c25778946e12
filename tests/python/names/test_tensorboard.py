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
        with pytest.raises(ValueError, match="input_to_model"):
            writer.add_graph(torch.nn.Linear(1, 1))
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


class Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(3, 3, bias=False))
        self.drop = torch.nn.Dropout(0.5).train()

    def forward(self, x, scale):
        return self.drop(x + self.body(x * scale)), x.sum()


def graph(tmp_path, model, inputs):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from warptape.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        writer.add_graph(model, inputs)
    return {node.name: node for node in EventAccumulator(str(tmp_path)).Reload().Graph().node}


def test_graph(tmp_path):
    model = Residual()
    model.body.eval()
    nodes = graph(tmp_path, model, (torch.ones(2, 3), torch.ones(3)))
    assert model.training and model.drop.training and not model.body.training
    assert not model._forward_hooks and not model.body[0]._forward_pre_hooks
    of = {(node.op, name.rpartition("/")[0]): node for name, node in nodes.items()}
    inside = "Residual/Sequential[body]"
    linear, weight = of["Linear", f"{inside}/Linear[1]"], f"{inside}/Linear[1]/weight"
    assert list(linear.input)[1] == weight and nodes[weight].op == "Parameter"
    relu = nodes[linear.input[0]]
    assert relu.op == "Relu" and relu.name.startswith(f"{inside}/ReLU[0]/")
    product = nodes[relu.input[0]]
    assert (product.op, list(product.input)) == ("Mul", ["input/input.0", "input/input.1"])
    assert list(of["Add", "Residual"].input) == ["input/input.0", linear.name]
    assert nodes["output/output.1"].input == [of["Sum", "Residual"].name]
    sizes = nodes["output/output.0"].attr["_output_shapes"].list.shape[0].dim
    assert [dim.size for dim in sizes] == [2, 3]


def test_graph_of_what_records_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        graph(tmp_path, torch.nn.Flatten(0), torch.ones(2, dtype=torch.int64))


def test_pr_curve(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from warptape.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        labels, chances = torch.tensor([1, 0, 1, 1, 0]), torch.tensor([0.9, 0.2, 0.6, 0.3, 0.5])
        writer.add_pr_curve("curve", labels, chances, 3, num_thresholds=5)
        writer.add_pr_curve("weighted", labels, chances, 3, 5, weights=labels + 1)
    found = EventAccumulator(str(tmp_path)).Reload()
    assert found.SummaryMetadata("curve").plugin_data.plugin_name == "pr_curves"
    rows = np.reshape(found.Tensors("curve")[0].tensor_proto.float_val, (6, 5))
    np.testing.assert_allclose(rows[:4], [[3, 3, 2, 1, 0], [2, 1, 1, 0, 0], [0, 1, 1, 2, 2], [0, 0, 1, 2, 3]])
    np.testing.assert_allclose(rows[4:], [[0.6, 0.75, 2 / 3, 1, 0], [1, 1, 2 / 3, 1 / 3, 0]], rtol=1e-6)
    assert np.reshape(found.Tensors("weighted")[0].tensor_proto.float_val, (6, 5))[0, 0] == 6


def test_embedding(tmp_path):
    pytest.importorskip("tensorboard")
    from warptape.utils.tensorboard import SummaryWriter

    points = torch.arange(6.0).view(3, 2)
    with SummaryWriter(tmp_path) as writer:
        writer.add_embedding(points, ["a", "b", "c"], torch.rand(3, 3, 4, 5), 2, "words")
        writer.add_embedding(points, [["a", 1], ["b", 2], ["c", 3]], metadata_header=["name", "count"])
        with pytest.raises(ValueError, match="2 labels for 3 data points"):
            writer.add_embedding(points, ["a", "b"])
        with pytest.raises(ValueError, match="should be 2D"):
            writer.add_embedding(points[0])
    assert (tmp_path / "00002/words/tensors.tsv").read_text() == "0.0\t1.0\n2.0\t3.0\n4.0\t5.0\n"
    assert (tmp_path / "00000/default/metadata.tsv").read_text() == "name\tcount\na\t1\nb\t2\nc\t3\n"
    from google.protobuf import text_format
    from PIL import Image
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    config = text_format.Parse((tmp_path / "projector_config.pbtxt").read_text(), ProjectorConfig())
    assert [e.tensor_name for e in config.embeddings] == ["words:00002", "default:00000"]
    assert list(config.embeddings[0].sprite.single_image_dim) == [5, 4]
    assert Image.open(tmp_path / config.embeddings[0].sprite.image_path).size == (10, 8)


def test_default_bins_grow_by_a_tenth(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from warptape.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_histogram("weights", torch.tensor([-2.0, 0.0, 0.5, 0.5]))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = events.Histograms("weights")[0].histogram_value
    limits = np.array(found.bucket_limit)
    assert sum(found.bucket) == 4 and found.bucket[0] == 0 and found.bucket[1] == 1 and found.bucket[-1] == 2
    assert limits[0] <= -2 <= limits[1] and limits[-2] <= 0.5 <= limits[-1] and 0.0 in limits
    positive = limits[limits > 1e-11]
    np.testing.assert_allclose(positive[1:] / positive[:-1], 1.1)
