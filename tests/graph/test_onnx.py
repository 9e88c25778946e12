"""torch.onnx.export of networks, run by onnxruntime beside the modules."""

from __future__ import annotations

import io

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape.models import Decoder, DecoderConfig, Encoder, EncoderConfig

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or inside != outside:
            self.down = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


def resnet18(classes=10):
    """He et al., Deep Residual Learning for Image Recognition, table 1."""
    widths = [64, 64, 128, 256, 512]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    blocks = [
        Block(widths[i] if first else widths[i + 1], widths[i + 1], 2 if i and first else 1)
        for i in range(4)
        for first in (True, False)
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
    return nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *blocks, *head)


class UNet(nn.Module):
    """Ronneberger et al., U-Net, with two levels: pooling, transposed convolution or resizing, skips."""

    def __init__(self):
        super().__init__()

        def twice(inside, outside):
            return nn.Sequential(
                nn.Conv2d(inside, outside, 3, padding=1),
                nn.GroupNorm(4, outside),
                nn.SiLU(),
                nn.Conv2d(outside, outside, 3, padding="same"),
                nn.LeakyReLU(0.1),
            )

        self.pool = nn.MaxPool2d(2)
        self.left1, self.left2, self.bottom = twice(1, 8), twice(8, 16), twice(16, 32)
        self.up2, self.right2 = nn.ConvTranspose2d(32, 16, 2, 2), twice(32, 16)
        self.right1, self.last = twice(24, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        first = self.left1(x)
        second = self.left2(self.pool(first))
        x = self.right2(torch.cat([second, self.up2(self.bottom(self.pool(second)))], 1))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(self.right1(torch.cat([first, x], dim=1))).softmax(1)


def run(file, *inputs):
    data = file if isinstance(file, bytes) else file.model_proto.SerializeToString()
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return session.run(None, {n: t.numpy() for n, t in zip(names, inputs, strict=True)})


def check(model, file, *inputs, tolerance=1e-4):
    """The file computes what the model computes in evaluation mode."""
    with torch.no_grad():
        want = model.eval()(*inputs)
    leaves = torch.utils._pytree.tree_leaves(want)
    want = [each for each in leaves if each is not None]  # an output that the model does not have
    got = run(file, *inputs)
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        assert x.shape == tuple(y.shape)
        np.testing.assert_allclose(x, y.numpy(), tolerance, tolerance)


@pytest.mark.parametrize("make", [resnet18, UNet])
def test_images(make, tmp_path):
    torch.manual_seed(0)
    model = make()
    channels = 1 if make is UNet else 3
    model.train()
    for _ in range(2):  # running statistics other than the first ones
        model(torch.randn(4, channels, 32, 32))
    path = tmp_path / "model.onnx"
    axes = {"image": {0: "batch", 2: "height", 3: "width"}}
    given = torch.randn(2, channels, 32, 48)
    torch.onnx.export(model, (given,), path, input_names=["image"], output_names=["y"], dynamic_axes=axes)
    assert all(m.training for m in model.modules())
    file = path.read_bytes()
    check(model, file, given)
    check(model, file, torch.randn(5, channels, 64, 32))
    graph = onnx.load(path).graph
    assert [i.name for i in graph.input] == ["image"] and [o.name for o in graph.output] == ["y"]
    assert [d.dim_param or d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == [
        "batch",
        channels,
        "height",
        "width",
    ]


SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GPT2 = {"positions": "learned", "norm": "layer_norm", "hidden_act": "gelu_new", "gated": False}
FAMILIES = {
    "gpt2": GPT2 | {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama": {"num_key_value_heads": 2},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_decoder(family):
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(**SIZES, max_position_embeddings=32, **FAMILIES[family]))
    ids = torch.randint(0, 60, (2, 7))
    batch, time = torch.export.Dim("batch", min=2), torch.export.Dim("time", min=2, max=32)
    file = torch.onnx.export(model, (ids,), dynamic_shapes=({0: batch, 1: time},))
    for shape in ((2, 7), (3, 12), (5, 32)):
        check(model, file, torch.randint(0, 60, shape))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"batch_first": True, "bidirectional": True}, {"bias": False}])
def test_recurrent(kind, options):
    torch.manual_seed(0)
    model = kind(6, 5, 2, **options)
    x = torch.randn(4, 3, 6)
    check(model, torch.onnx.export(model, (x,)), x)
    states = tuple(torch.randn(2 * (2 if "bidirectional" in options else 1), 3, 5) for _ in range(2))
    if "batch_first" in options:
        x = torch.randn(3, 4, 6)
    with_state = Stateful(model, kind is nn.LSTM)
    check(with_state, torch.onnx.export(with_state, (x, *states)), x, *states)


class Stateful(nn.Module):
    def __init__(self, layer, two):
        super().__init__()
        self.layer, self.two = layer, two

    def forward(self, x, h, c):
        return self.layer(x, (h, c) if self.two else h + 0 * c)


def test_encoder_layers():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    x = torch.randn(2, 5, 16)
    check(layer, torch.onnx.export(layer, (x,)), x)
    attention = nn.MultiheadAttention(16, 4)
    q, k, v = torch.randn(5, 2, 16), torch.randn(7, 2, 16), torch.randn(7, 2, 16)
    model = Weightless(attention)
    check(model, torch.onnx.export(model, (q, k, v)), q, k, v)


class Weightless(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, q, k, v):
        return self.attention(q, k, v, need_weights=False)[0]


def test_views_in_place_and_outputs():
    def model(x, y):
        x = x * 2
        x += y
        x[:, 0] = 1  # a view of x changes it, and x is read no more
        return y, {"sum": y.sum(), "shape": (y + 1).reshape(-1)}

    x, y = torch.randn(2, 3), torch.randn(3)
    got = run(torch.onnx.export(model, (x, y)), x, y)
    assert np.array_equal(got[0], y.numpy()) and got[2].shape == (3,)
    np.testing.assert_allclose(got[1], y.sum().item(), 1e-6)


def test_an_exported_program_is_taken(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2)).eval()
    x = torch.randn(3, 4)
    file = io.BytesIO()
    made = torch.onnx.export(torch.export.export(model, (x,)), (), file)
    assert file.getvalue() == made.model_proto.SerializeToString()
    check(model, file.getvalue(), x)
    made.save(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == file.getvalue() and "Gemm" not in repr(made)
    (got,) = made(x)
    assert torch.allclose(got, model(x), atol=1e-5)
    with pytest.raises(TypeError, match="expected 1 tensors, got 2"):
        made(x, x)


def stale(x):
    y = x * 1
    y[0].add_(1)
    return y


REFUSALS = {
    "no form": (lambda x: torch.linalg.inv(x), "inv"),
    "a stale view": (stale, "changed in place"),
    "complex": (lambda x: torch.fft.fft(x).abs(), "fft"),
    "integers that wrap": (lambda x: torch.cumprod(x, 0), "cumprod"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_has_no_form_is_refused(case, tmp_path):
    model, text = REFUSALS[case]
    path = tmp_path / "model.onnx"
    path.write_bytes(b"before")
    with pytest.raises(torch.onnx.UnsupportedOperatorError, match=rf"(?s){text}.*test_onnx\.py"):
        torch.onnx.export(model, (torch.randn(3, 3),), path)
    assert path.read_bytes() == b"before"
    assert not torch.onnx.is_in_onnx_export()


def test_bad_arguments():
    x = torch.randn(3, 3)
    model = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="opset_version 99"):
        torch.onnx.export(model, (x,), opset_version=99)
    with pytest.raises(torch.onnx.UnsupportedOperatorError, match="training mode"):
        torch.onnx.export(nn.Dropout(0.5), (x,), training=True)
    with pytest.raises(ValueError, match="dynamic_axes"):
        torch.onnx.export(model, (x,), input_names=["x"], dynamic_axes={"z": [0]})
    with pytest.raises(ValueError, match="input_names"):
        torch.onnx.export(model, (x,), input_names=["x", "y"])
    with pytest.raises(ValueError, match="output_names"):
        torch.onnx.export(model, (x,), output_names=["x", "y"])
    with pytest.raises(TypeError, match="takes 2 positional"):
        torch.onnx.export(model, (x, x))


def test_encoder_model():
    torch.manual_seed(0)
    model = Encoder(EncoderConfig(**SIZES, intermediate_size=64)).eval()
    ids = torch.randint(0, 60, (2, 6))
    check(model, torch.onnx.export(model, (ids,)), ids)
