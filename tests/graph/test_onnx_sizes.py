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
    file = torch.onnx.export(model, (torch.randn(2, example),), dynamic_shapes=shapes)
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
