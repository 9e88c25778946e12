"""Exported models at sizes other than the example's, run by onnxruntime beside eager code."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
ort.set_default_logger_severity(4)
Dim = torch.export.Dim


def session(file):
    return ort.InferenceSession(file.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])


def results(file, *inputs):
    s = session(file)
    return s.run(None, {i.name: x.numpy() for i, x in zip(s.get_inputs(), inputs, strict=True)})


def compare(model, file, *inputs):
    with torch.no_grad():
        want = torch.utils._pytree.tree_leaves(model(*inputs))
    got = results(file, *inputs)
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        y = y.numpy() if isinstance(y, torch.Tensor) else np.asarray(y)
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, 1e-4, 1e-4)


def halves(x):
    return x[:, : (x.shape[1] + 1) // 2], x[:, x.shape[1] // 2 :]


def padded(x):
    x = F.pad(x, (0, -x.shape[1] % 4))
    return x.reshape(x.shape[0], -1, 4)


def patches(x):  # [B, 3, H, W] -> [B, tokens, 3 * 2 * 2]
    b, c, h, w = x.shape
    return x.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * 4)


def positions(x):
    return x + torch.arange(x.shape[1], dtype=x.dtype)[None], torch.full((x.shape[0], 2), x.shape[1])


class Same(nn.Module):
    """Two modules of one name, and parameters that are called as nodes and results are."""

    def __init__(self):
        super().__init__()
        self.Conv_0 = nn.Linear(3, 3)
        self.output_0 = nn.Parameter(torch.ones(3))
        self.input_0 = nn.Parameter(torch.full((3,), 2.0))
        self.number_0 = self.twin = nn.Linear(3, 3)

    def forward(self, x):
        return self.twin(self.number_0(self.Conv_0(x))) * self.output_0 + self.input_0


# Of an input with dims B (batch), C = 3 and others: which vary, from which example, and the model.
ROWS = {  # rank 2: [B, N]
    "halves": halves,
    "chunk": lambda x: x.chunk(3, 1),
    "tensor_split": lambda x: x.tensor_split(3, 1),
    "split": lambda x: x.split([2, x.shape[1] - 2], 1),
    "pad to a multiple": padded,
    "clamped slice": lambda x: (x[:, 2:6], x[:, -3:]),
    "strided slice": lambda x: x[:, ::1].flip(1),
    "narrow": lambda x: x.narrow(1, 1, x.shape[1] - 2),
    "positions": positions,
    "sizes as results": lambda x: (x * 2, x.shape[0], x.shape[1] // 2, x + x.shape[1]),
    "mean by hand": lambda x: x.sum(1) / x.shape[1],
    "flatten": lambda x: (x.reshape(-1), x[None].flatten(1), x.reshape(x.shape[1], x.shape[0])),
    "expand": lambda x: x[:, None].expand(-1, 4, -1) + x[:, :, None].expand(-1, -1, x.shape[1]).sum(1, True),
    "repeat": lambda x: x.repeat(2, 3),
    "max_pool1d": lambda x: F.max_pool1d(x, 2).reshape(x.shape[0], 1, -1),
    "max_pool1d, ceil": lambda x: F.max_pool1d(x, 3, 2, 1, ceil_mode=True),
    "cumsum": lambda x: x.cumsum(1),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x[..., None].expand(-1, -1, 3), (3,)),
    "var": lambda x: (x.var(1, correction=0), x.std(0, correction=0)),
    "topk": lambda x: x.topk(2, 1)[0],
    "sort": lambda x: x.sort(1)[0],
    "triangle": lambda x: torch.ones(x.shape[1], x.shape[1]).tril() @ x.transpose(0, 1),
    "attention": lambda x: F.scaled_dot_product_attention(*[x[:, :, None]] * 3, is_causal=True),
    "the input, twice, and a constant": lambda x: (x, x, torch.ones(2), x + 1),
}
IMAGES = {  # rank 4: [B, 3, H, W]
    "conv, stride": nn.Conv2d(3, 4, 3, 2, 1),
    "conv, stride 3, reshape": nn.Sequential(nn.Conv2d(3, 4, 3, 3), nn.Flatten(2)),
    "conv, same, even kernel": nn.Conv2d(3, 4, 4, padding="same"),
    "conv, same, dilation": nn.Conv2d(3, 4, (2, 3), padding="same", dilation=(3, 2)),
    "conv, groups, valid": nn.Conv2d(3, 6, 2, padding="valid", groups=3),
    "conv_transpose": nn.ConvTranspose2d(3, 2, 3, 2, 1, output_padding=1, dilation=2),
    "avg_pool": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "max_pool": nn.Sequential(nn.MaxPool2d(2), nn.Flatten()),
    "max_pool, ceil": nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "global pools": lambda x: (F.adaptive_avg_pool2d(x, 1), x.mean((2, 3)), x.amax((2, 3))),
    "patches": patches,
    "strides": lambda x: nn.functional.conv2d(x, torch.ones(2, 3, 4, 4), stride=4, padding=1).flatten(1),
    "instance norm": nn.InstanceNorm2d(3, affine=True),
    "group norm": nn.GroupNorm(3, 3),
    "batch norm": nn.BatchNorm2d(3).eval(),
    "pixel shuffle": lambda x: F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2),
    "reflect": lambda x: F.pad(x, (1, 0, 0, 1), mode="reflect"),
    "crop": lambda x: F.pad(x, (-1, 0, 1, -1), value=2.0),
    "up to a size": lambda x: F.interpolate(x, (x.shape[2] * 2 - 1, 5), mode="bilinear"),
    "up as another": lambda x: F.interpolate(F.max_pool2d(x, 2), x.shape[2:], mode="nearest"),
}
LAYERS = {
    "LSTM": nn.LSTM(3, 5, 2, bidirectional=True),
    "GRU": nn.GRU(3, 5, bidirectional=True, batch_first=True),
    "RNN": nn.RNN(3, 5, nonlinearity="relu"),
    "same names": Same(),
    "encoder layer": nn.TransformerEncoderLayer(3, 1, 8, batch_first=True).eval(),
    "conv1d": lambda x: F.conv1d(x.transpose(1, 2), torch.ones(2, 3, 3), stride=2, padding=1).flatten(1),
}


def exported(model, x, varies, least=1):
    shapes = ({d: Dim(name, min=least) for d, name in varies.items()},)
    return torch.onnx.export(model, (x,), dynamic_shapes=shapes)


@pytest.mark.parametrize("example", [6, 7])
@pytest.mark.parametrize("case", ROWS)
def test_rows(case, example):
    torch.manual_seed(0)
    model = ROWS[case]
    # Fewer columns give fewer chunks, and sum up to other calls.
    shapes = ({0: Dim("batch", min=1), 1: Dim("n", min=5 if case == "chunk" else 1)},)
    try:
        file = torch.onnx.export(model, (torch.randn(2, example),), dynamic_shapes=shapes)
    except NotImplementedError as error:  # halves are cut by bounds that are other calls at other sizes
        if case != "halves" or "other ops are called" not in str(error):
            raise
        return
    for batch, n in ((2, example), (1, 5), (3, 8), (2, 9), (1, 11), (4, 13), (1, 1), (2, 2), (1, 3), (3, 40)):
        x = torch.randn(batch, n)
        try:
            model(x)
        except (RuntimeError, ValueError, IndexError):
            continue  # sizes that eager code refuses
        if n >= 5 or case != "chunk":
            compare(model, file, x)


@pytest.mark.parametrize("case", IMAGES)
def test_images(case):
    torch.manual_seed(0)
    file = exported(IMAGES[case], torch.randn(2, 3, 8, 12), {0: "batch", 2: "h", 3: "w"})
    for batch, h, w in ((1, 8, 12), (3, 7, 5), (2, 11, 6), (1, 16, 9), (1, 1, 1), (5, 3, 40)):
        x = torch.randn(batch, 3, h, w)
        try:
            with torch.no_grad():
                IMAGES[case](x)
        except RuntimeError:
            continue  # sizes that eager code refuses
        compare(IMAGES[case], file, x)


@pytest.mark.parametrize("case", LAYERS)
def test_layers(case):
    torch.manual_seed(0)
    file = exported(LAYERS[case], torch.randn(2, 6, 3), {0: "a", 1: "b"})
    for shape in ((2, 6, 3), (1, 1, 3), (3, 5, 3), (4, 9, 3)):
        compare(LAYERS[case], file, torch.randn(*shape))


# ---- resizing ----------------------------------------------------------------------------------------------

FACTORS = (
    {"scale_factor": 1.5},
    {"scale_factor": 0.5},
    {"scale_factor": 0.7},
    {"scale_factor": 2.3},
    {"scale_factor": 1.3},
    {"scale_factor": 2},
    {"scale_factor": 0.7, "recompute_scale_factor": True},
    {"size": 1},
    {"size": 7},
)
MODES = (
    ("nearest", None, 1),
    ("nearest", None, 2),
    ("nearest-exact", None, 2),
    ("linear", False, 1),
    ("linear", True, 1),
    ("bilinear", False, 2),
    ("bilinear", True, 2),
    ("trilinear", False, 3),
    ("bicubic", False, 2),
    ("bicubic", True, 2),
)


@pytest.mark.parametrize("factor", FACTORS, ids=str)
def test_interpolate(factor):
    torch.manual_seed(0)
    for mode, align, dims in MODES:

        def resized(x, mode=mode, align=align):
            return F.interpolate(x, mode=mode, align_corners=align, **factor)

        shapes = ({d + 2: Dim(f"n{d}", min=1) for d in range(dims)},)
        file = torch.onnx.export(resized, (torch.rand(1, 1, *[6] * dims),), dynamic_shapes=shapes)
        # 0.7 * 90 rounds down to 62 in float64 and is 63 in float32
        for n in (1, 2, 3, 5, 10, *((90,) if dims < 3 else ())):
            x = torch.rand(1, 1, *[n] * (dims - 1), n + 1)
            if all(int(k * factor.get("scale_factor", 1)) for k in x.shape[2:]):
                compare(resized, file, x)
    for refused in ({"mode": "bilinear", "antialias": True}, {"mode": "area"}):
        with pytest.raises(torch.onnx.UnsupportedOperatorError, match="interpolate"):
            torch.onnx.export(lambda x, o=refused: F.interpolate(x, **o, **factor), (torch.rand(1, 1, 7, 7),))


# ---- names -------------------------------------------------------------------------------------------------


def test_names_that_others_have():
    model = Same()
    x = torch.randn(2, 3)
    for names in (
        {"input_names": ["Conv_0.weight"], "output_names": ["twin.weight"]},
        {"input_names": ["MatMul_1"], "output_names": ["input_0"]},
        {"input_names": ["output_0"], "output_names": ["number_0"]},
        {},
    ):
        file = torch.onnx.export(model, (x,), **names)
        compare(model, file, x)
        graph = file.model_proto.graph
        made = [n for node in graph.node for n in node.output]
        known = [i.name for i in (*graph.input, *graph.initializer)] + made
        assert len(known) == len(set(known))
        assert [i.name for i in graph.input] == names.get("input_names", ["input_0"])
        assert [o.name for o in graph.output] == names.get("output_names", ["output_0"])
    with pytest.raises(ValueError, match="more than once"):
        torch.onnx.export(model, (x,), input_names=["x"], output_names=["x"])
    with pytest.raises(ValueError, match="not empty"):
        torch.onnx.export(model, (x,), input_names=[""])


def test_dynamic_axes_name_outputs_too():
    names = {"input_names": ["a", "b"], "output_names": ["c"]}
    axes = {"a": {0: "batch"}, "b": {0: "batch"}, "c": {0: "batch"}}
    file = torch.onnx.export(lambda a, b: a + b, (torch.ones(2, 3),) * 2, **names, dynamic_axes=axes)
    compare(lambda a, b: a + b, file, torch.ones(5, 3), torch.randn(5, 3))
    same = torch.ones(2, 3)  # one tensor as two arguments: two inputs
    compare(lambda a, b: a - b, torch.onnx.export(lambda a, b: a - b, (same, same)), same, same * 3)
    info = file.model_proto.graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in info] == ["batch", 3]
    with pytest.raises(ValueError, match=r"\['d'\] are no input_names or output_names"):
        torch.onnx.export(lambda a, b: a + b, (torch.ones(2, 3),) * 2, **names, dynamic_axes={"d": [0]})


# ---- what is refused ---------------------------------------------------------------------------------------

OTHER_CALLS = {
    "a branch by size": lambda x: x * 2 if x.shape[0] > 4 else x + 1,
    "a loop by size": lambda x: sum((x[i] for i in range(x.shape[0])), torch.zeros(3)),
    "squeezed if it is 1": lambda x: x.squeeze(),
    "a constant of the size": lambda x: x + torch.tensor([[float(i)] for i in range(x.shape[0])]),
    "a fraction of the size": lambda x: torch.full((2,), float(x.shape[0])) + x.sum(),
}


@pytest.mark.parametrize("case", OTHER_CALLS)
def test_what_is_other_at_other_sizes_is_refused(case):
    with pytest.raises(NotImplementedError, match=r"torch\.onnx\.export: .*(n = |sizes of the inputs)"):
        torch.onnx.export(OTHER_CALLS[case], (torch.ones(4, 3),), dynamic_shapes=({0: Dim("n")},))


def test_sizes_of_no_known_form_are_refused():
    def squares(x):
        return torch.zeros(int(x.shape[0] ** 0.5), 2) + 1

    with pytest.raises(torch.onnx.UnsupportedOperatorError, match="in a way that is not known here"):
        torch.onnx.export(squares, (torch.ones(9, 3),), dynamic_shapes=({0: Dim("n")},))
    with pytest.raises(torch.onnx.UnsupportedOperatorError, match="result of type str"):
        torch.onnx.export(lambda x: (x + 1, "text"), (torch.ones(2),))
