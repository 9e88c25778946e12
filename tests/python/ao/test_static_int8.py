"""Convolutions on bytes, and static quantisation of whole nets."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import warptape as wt
import warptape.nn.functional as F
from warptape import nn
from warptape.ao import quantization as q
from warptape.ao.quantization import _int8

ops = wt._C._private
CASES = [  # images, channels, outputs, height, width, kernel, stride, padding, dilation, residual
    (1, 4, 16, 5, 5, 1, 1, 0, 1, False),
    (2, 3, 17, 9, 9, 3, 1, 1, 1, True),
    (1, 3, 64, 30, 31, 7, 2, 3, 1, False),
    (2, 20, 70, 9, 9, 3, 2, 1, 1, True),
    (2, 8, 16, 12, 12, 3, 1, 2, 2, True),
    (3, 12, 100, 7, 7, 1, 2, 0, 1, True),
    (5, 8, 33, 6, 1, 1, 1, 0, 1, False),
    (1, 10, 33, 20, 19, 3, 1, 0, 3, False),
    (4, 64, 130, 14, 14, 3, 1, 1, 1, True),
    (2, 68, 48, 20, 20, 3, 1, 1, 1, False),
    (1, 128, 32, 40, 40, 1, 1, 0, 1, False),
    (1, 16, 20, 33, 17, 5, 1, 2, 1, True),
]


@pytest.mark.parametrize("case", CASES)
def test_convolution_of_bytes(case):
    """By its definition, in float64: products of codes are exact there."""
    images, channels, outputs, height, width, kernel, stride, padding, dilation, added = case
    rng = np.random.default_rng(0)

    def draw(low, high, *shape):
        return wt.from_numpy(rng.integers(low, high, shape))

    x = draw(0, 256, images, channels, height, width).to(wt.uint8)
    codes = draw(-128, 128, outputs, channels, kernel, kernel).to(wt.int8)
    scale, bias = (wt.from_numpy(rng.random(outputs).astype(np.float32)) for _ in range(2))
    scale, bias = scale * 1e-3, bias * 100
    zero, low = 7, 5.0
    around = F.pad(x.double(), (padding,) * 4, value=zero)
    y = F.conv2d(around, codes.double(), stride=stride, dilation=dilation) * scale.double().view(-1, 1, 1)
    y = y + bias.double().view(-1, 1, 1)
    residual = draw(0, 256, *y.shape).to(wt.uint8) if added else None
    y = y + residual.double() * 0.3 if added else y

    def run(low, floats):
        pad = (0, -outputs % 16)
        windows = [[v, v] for v in (kernel, stride, padding, dilation)]
        return ops._int8_conv2d(
            x, _int8.pack_codes(codes), F.pad(scale, pad), F.pad(bias, pad), outputs, *windows, zero, low,
            residual, 0.3, floats,
        )  # fmt: skip

    got = run(low, False)
    assert got.dtype == wt.uint8 and got.is_contiguous(memory_format=wt.channels_last)
    expected = y.clamp(low, 255)
    assert float((got.double() - expected).abs().max()) <= 0.501
    assert wt.allclose(run(-1e30, True).double(), y, rtol=1e-5, atol=1e-3)
    threads = wt.get_num_threads()
    wt.set_num_threads(1)
    try:
        assert wt.equal(run(low, False), got)
    finally:
        wt.set_num_threads(threads)


@pytest.mark.parametrize("channels", [3, 70])
def test_pooling_of_bytes(channels):
    x = wt.randint(0, 256, (2, channels, 9, 8)).to(wt.uint8)
    for windows in ((2, 2, 0, 1), (3, 2, 1, 1), (2, 1, 0, 2)):
        got = ops._max_pool_bytes(x, *[(v, v) for v in windows])
        assert wt.equal(got, F.max_pool2d(x.float(), *windows).to(wt.uint8))


def test_values_to_bytes():
    x = wt.tensor([-1e30, -3.0, 0.24, 0.26, 0.75, 1e30, float("nan")])
    assert ops._quantize_bytes(x, 0.5, 3).tolist() == [0, 0, 3, 4, 4, 255, 0]
    image = wt.randn(2, 3, 5, 4)
    codes = (wt.round(image / 0.05) + 128).clamp(0, 255).to(wt.uint8)
    for layout in (wt.contiguous_format, wt.channels_last):
        assert wt.equal(ops._quantize_bytes(image.contiguous(memory_format=layout), 0.05, 128, True), codes)


def test_kernels_refuse_what_does_not_fit():
    x, packed = wt.zeros(1, 4, 3, 3, dtype=wt.uint8), wt.zeros(1, 1, 16, 4, dtype=wt.int8)
    row, one = wt.zeros(16), [(1, 1), (1, 1), (0, 0), (1, 1)]
    with pytest.raises(wt.DtypeError, match="expected an input of uint8"):
        ops._int8_conv2d(x.float(), packed, row, row, 16, *one, 0, 0.0)
    with pytest.raises(wt.ShapeError, match="expected packed"):
        ops._int8_conv2d(x, packed, row, row, 17, *one, 0, 0.0)
    with pytest.raises(ValueError, match="zero_point must be from 0 to 255"):
        ops._int8_conv2d(x, packed, row, row, 16, *one, 256, 0.0)
    with pytest.raises(wt.ShapeError, match="smaller than the kernel"):
        ops._max_pool_bytes(x, (4, 4), (1, 1), (0, 0), (1, 1))


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)
        self.short = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.short(x)
        return self.relu(y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 12, 5, 2, 2), nn.BatchNorm2d(12)
        self.pool, self.blocks = nn.MaxPool2d(3, 2, 1), nn.Sequential(Block(12, 12), Block(12, 20))
        self.apart = nn.Conv2d(20, 20, 3, padding=1, groups=20)
        self.mean, self.drop, self.head = nn.AdaptiveAvgPool2d(2), nn.Dropout(0.5), nn.Linear(80, 7)

    def forward(self, x):
        x = self.blocks(self.pool(F.relu(self.norm(self.stem(x)))))
        x = wt.sigmoid(self.apart(x)) * x
        return self.head(self.drop(wt.flatten(self.mean(x), 1)))


@pytest.fixture(scope="module")
def net():
    wt.manual_seed(0)
    model = Net()
    with wt.no_grad():
        for _ in range(5):
            model(wt.randn(8, 3, 24, 24))
    return model.eval()


def calibrated(model, mapping=None, batches=4):
    prepared = q.prepare_fx(model, mapping or q.get_default_qconfig_mapping(), (wt.randn(1, 3, 24, 24),))
    wt.manual_seed(1)
    with wt.no_grad():
        for _ in range(batches):
            prepared(wt.randn(8, 3, 24, 24))
    return prepared


def error(model, net):
    x = wt.randn(16, 3, 24, 24)
    with wt.no_grad():
        y = net(x)
        return float((model(x) - y).norm() / y.norm())


def test_a_net_with_residuals(net):
    state = copy.deepcopy(net.state_dict())
    prepared = calibrated(net)
    assert error(prepared, net) < 1e-5  # observers change nothing, batch norms are folded
    made = q.convert_fx(prepared)
    assert error(made, net) < 0.02
    report = q.quantization_report(made)
    assert len(report.quantized) == 7 and report.skipped == {
        "apart": "convolutions by groups have no kernel on bytes"
    }
    kinds = [type(m).__name__ for m in made.modules()]
    assert kinds.count("Int8Conv2d") == 7 and "BatchNorm2d" not in kinds and kinds.count("Quantize") == 2
    joined = [m for m in made.modules() if isinstance(m, _int8.Int8Conv2d) and m.residual is not None]
    assert len(joined) == 2 and all(m.relu for m in joined)
    assert all(wt.equal(t, state[name]) for name, t in net.state_dict().items())
    again = copy.deepcopy(made)
    again.load_state_dict(made.state_dict())
    assert error(again, made) == 0
    assert error(q.convert_fx(prepared), made) == 0  # prepared can be converted twice


def test_a_fault_in_the_scales_is_seen(net):
    made = q.convert_fx(calibrated(net))
    layer = next(m for m in made.modules() if isinstance(m, _int8.Int8Conv2d) and m.residual is not None)
    layer.residual_scale *= 1.5
    assert error(made, net) > 0.05


def test_layers_are_chosen_by_the_mapping(net):
    mapping = q.get_default_qconfig_mapping().set_module_name("blocks.0", None)
    mapping.set_object_type(nn.Linear, None).set_module_name_regex(r"blocks\.1\.short", None)
    made = q.convert_fx(calibrated(net, mapping))
    report = q.quantization_report(made)
    assert set(report.quantized) == {"stem", "blocks.1.conv1", "blocks.1.conv2"}
    assert report.skipped["head"] == "it has no qconfig" and "blocks.0.conv1" in report.skipped
    assert error(made, net) < 0.02


def test_data_that_are_missing_or_bad(net):
    with pytest.raises(ValueError, match="no values were observed"):
        q.convert_fx(calibrated(net, batches=0))
    prepared = calibrated(net)
    expected = q.convert_fx(prepared)
    with pytest.raises(ValueError, match="NaN or infinity"):
        prepared(wt.full((1, 3, 24, 24), float("nan")))
    assert error(q.convert_fx(prepared), expected) == 0
    with pytest.raises(wt.ShapeError, match="expected an input of 3 channels"):
        expected(wt.zeros(1, 4, 24, 24))
    with pytest.raises(ValueError, match="expected what prepare_fx"):
        q.convert_fx(net)
    with pytest.raises(TypeError, match="QConfigMapping"):
        q.prepare_fx(net, 3)


def test_names_of_eager_mode(net):
    model = nn.Sequential(q.QuantStub(), copy.deepcopy(net), q.DeQuantStub()).eval()
    with pytest.raises(ValueError, match="no module has a qconfig"):
        q.prepare(model)
    model.qconfig = q.get_default_qconfig("fbgemm")
    model[1].head.qconfig = None
    prepared = q.prepare(model)
    with wt.no_grad():
        for _ in range(4):
            prepared(wt.randn(8, 3, 24, 24))
    made = q.convert(prepared)
    assert error(made, net) < 0.02 and "1.head" in q.quantization_report(made).skipped
    fused = q.fuse_modules(net, [["stem", "norm"], ["blocks.0.conv1", "blocks.0.bn1", "blocks.0.relu"]])
    assert isinstance(fused.norm, nn.Identity) and error(fused, net) < 1e-5
    with pytest.raises(ValueError, match="expected a layer, then a batch norm"):
        q.fuse_modules(net, ["norm", "stem"])


def test_training_with_codes(net):
    wt.manual_seed(0)
    prepared = q.prepare_qat_fx(copy.deepcopy(net).train(), q.get_default_qat_qconfig_mapping())
    x, y = wt.randn(64, 3, 24, 24), wt.arange(64) % 7
    optimizer = wt.optim.Adam(prepared.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        loss = F.cross_entropy(prepared(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-5:]) < 0.9 * losses[0]
    prepared.eval()
    q.disable_observer(prepared)
    made = q.convert_fx(prepared)
    with wt.no_grad():
        expected = prepared(x)
        assert float((made(x) - expected).norm() / expected.norm()) < 0.02
    with pytest.raises(TypeError, match="expected a QConfig of FakeQuantize"):
        q.prepare_qat_fx(net, q.get_default_qconfig_mapping())
