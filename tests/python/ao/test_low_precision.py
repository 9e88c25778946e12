"""Formats of few bits against ml_dtypes and the specifications' formulas, and training on them."""

from __future__ import annotations

import copy
import math

import ml_dtypes
import numpy as np
import pytest
import warptape as wt
from warptape import nn
from warptape.ao import low_precision as lp

ELEMENTS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}
GREATEST = {"e4m3": 8, "e5m2": 15, "e2m1": 2}  # exponents


def every(dtype):
    """All 65,536 numbers of a 16-bit dtype."""
    return wt.arange(-(2**15), 2**15, dtype=wt.int32).to(wt.int16).view(dtype)


def wide(shape=(64, 96), seed=0):
    """Numbers of many magnitudes, some zero."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * np.exp2(rng.integers(-24, 9, size=shape)) * (rng.random(shape) > 0.1)
    return wt.tensor(x.astype(np.float32))


def nearest(x, element):
    """By ml_dtypes, of numbers clamped to the format's."""
    return np.clip(x, -LARGEST[element], LARGEST[element]).astype(ELEMENTS[element])


@pytest.mark.parametrize("dtype", [wt.bfloat16, wt.float16], ids=str)
@pytest.mark.parametrize("element", ELEMENTS)
def test_65536_numbers_are_rounded_as_ml_dtypes_does(element, dtype):
    x = every(dtype).float()
    x = x[x.isfinite()]
    found = lp.formats._nearest(x, lp.formats._ELEMENTS[element], None)
    want = nearest(x.numpy(), element)
    np.testing.assert_array_equal(found.numpy(), want.astype(np.float32))
    np.testing.assert_array_equal(found.signbit().numpy(), np.signbit(want.astype(np.float32)))
    if element == "e2m1":
        codes = lp.formats._float4_codes(found)
        np.testing.assert_array_equal(codes.numpy(), want.view(np.uint8))
        np.testing.assert_array_equal(lp.formats._float4_values(codes).numpy(), found.numpy())


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
def test_256_codes_mean_what_ml_dtypes_says(dtype):
    codes = np.arange(256, dtype=np.uint8)
    mine = wt.from_numpy(codes.copy()).view(getattr(wt, dtype)).float().numpy()
    np.testing.assert_array_equal(mine, codes.view(getattr(ml_dtypes, dtype)).astype(np.float32))
    back = wt.from_numpy(mine).to(getattr(wt, dtype)).view(wt.uint8).numpy()
    fine = ~np.isnan(mine)
    np.testing.assert_array_equal(back[fine], codes[fine])


def test_float4_codes_are_ml_dtypes():
    codes = np.arange(16, dtype=np.uint8)
    values = lp.formats._float4_values(wt.from_numpy(codes.copy())).numpy()
    np.testing.assert_array_equal(values, codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    assert str(wt.float4_e2m1fn_x2) == "torch.float4_e2m1fn_x2"
    packed = lp.pack_float4(wt.tensor([[1, 2], [15, 8]], dtype=wt.uint8))
    assert packed.tolist() == [[0x21], [0x8F]]


def blocks_by_numpy(x, element, block, scale_of):
    """[R, K] rounded block by block: scale_of(greatest magnitude) divides."""
    out = np.empty_like(x)
    for r in range(len(x)):
        for at in range(0, x.shape[1], block):
            part = x[r, at : at + block]
            scale = scale_of(np.abs(part).max())
            out[r, at : at + block] = nearest(part / scale, element).astype(np.float32) * scale
    return out


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize("element", ELEMENTS)
def test_mx_formats_by_the_specification(element, up):
    """OCP MX 1.0, section 6.3; `up` is the least power of two under which nothing saturates."""
    x = wide().numpy()
    x[3, 32:64] = 0

    def scale_of(most):
        if most == 0:
            return np.float32(2.0**-127)
        power = (
            math.ceil(math.log2(most / LARGEST[element]))
            if up
            else math.floor(math.log2(most)) - GREATEST[element]
        )
        return np.float32(2.0 ** max(power, -127))

    format = lp.Format(element, "e8m0", 32, up)
    stored = lp.encode(wt.from_numpy(x), format)
    np.testing.assert_array_equal(lp.decode(stored).numpy(), blocks_by_numpy(x, element, 32, scale_of))
    assert stored.scales.dtype is wt.float8_e8m0fnu and stored.scales.shape == (64, 3)
    assert (stored.saturated == 0) is up


def test_nvfp4_by_its_formulas():
    x = wide((32, 40)).numpy()
    whole = np.float32(np.abs(x).max()) / np.float32(448 * 6)

    def scale_of(most):
        scale = np.clip(np.float32(most) / np.float32(6) / whole, 2.0**-6, 448)
        return whole * scale.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)

    stored = lp.encode(wt.from_numpy(x), "nvfp4")
    assert stored.scales.dtype is wt.float8_e4m3fn and stored.scales.shape == (32, 3)
    want = blocks_by_numpy(x, "e2m1", 16, scale_of)
    np.testing.assert_allclose(lp.decode(stored).numpy(), want, rtol=1e-6, atol=0)
    assert lp.round_to(wt.zeros(2, 16), "nvfp4").abs().sum() == 0


@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
@pytest.mark.parametrize("block", [None, 0])
def test_float8_with_one_scale_or_a_scale_a_row(element, block):
    x = wide().numpy()
    stored = lp.encode(wt.from_numpy(x), lp.Format(element, block=block))
    most = np.abs(x).max(-1, keepdims=True) if block == 0 else np.abs(x).max()
    factor = (LARGEST[element] / most.astype(np.float64)).astype(np.float32)
    codes = nearest(x * factor, element)
    np.testing.assert_array_equal(stored.numbers.view(wt.uint8).numpy(), codes.view(np.uint8))
    np.testing.assert_array_equal(lp.decode(stored).numpy(), codes.astype(np.float32) * (1 / factor))


@pytest.mark.parametrize("format", lp.FORMATS)
def test_products(format):
    a, b = (lp.encode(wide((24, 64), seed), format) for seed in (1, 2))
    want = lp.decode(a).double() @ lp.decode(b).double().T
    got = lp.multiply(a, b)
    assert got.shape == (24, 24) and float((got - want).abs().max() / want.abs().max()) < 1e-5


def test_rounding_at_random_keeps_the_mean():
    x = wt.tensor([0.3, 0.9, 2.2, -5.1, 6.0]).repeat(20_000, 1)
    x = wt.cat([x, wt.full((20_000, 1), 6.0)], 1)
    noise = wt.rand(x.shape, generator=wt.Generator().manual_seed(1))
    rounded = lp.round_to(x, "mxfp4", noise=noise)
    assert (rounded.mean(0) - x[0]).abs().max() < 0.03
    assert set(rounded[:, 0].unique().tolist()) == {0.0, 0.5}


def test_what_is_not_finite_spoils_its_block_alone():
    x = wt.ones(1, 64)
    x[0, 3] = wt.nan
    for format in ("mxfp8_e4m3", "mxfp4"):
        assert lp.round_to(x, format).isnan().sum() == 32
    assert lp.round_to(x, "float8_e4m3fn_rows").isnan().all()


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="unknown format 'fp3'"):
        lp.encode(wt.ones(4), "fp3")
    with pytest.raises(ValueError, match="floating-point"):
        lp.encode(wt.ones(4, dtype=wt.int32), "mxfp4")
    with pytest.raises(ValueError, match="belongs to blocks"):
        lp.Format("e2m1", "e8m0")
    with pytest.raises(ValueError, match="expected \\[M, K\\]"):
        lp.multiply(lp.encode(wt.ones(2, 32), "mxfp4"), lp.encode(wt.ones(2, 64), "mxfp4"))
    with pytest.raises(ValueError, match="unknown recipe"):
        lp.convert_to_low_precision_training(nn.Linear(2, 2), "fp3")
    with pytest.raises(ValueError, match="that is chosen"):
        lp.convert_to_low_precision_training(nn.ReLU(), "mxfp8")
    with pytest.raises(ValueError, match="even number"):
        lp.pack_float4(wt.zeros(3, dtype=wt.uint8))


# ---- training -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["float8", "float8_rows", "mxfp8"])
def test_a_layers_products_are_those_of_rounded_factors(recipe):
    wt.manual_seed(0)
    layer = nn.Linear(48, 40)
    low = lp.convert_to_low_precision_training(copy.deepcopy(layer), recipe)
    x = wt.randn(3, 5, 48, requires_grad=True)
    g = wt.randn(3, 5, 40)
    low(x).backward(g)
    r = lp.RECIPES[recipe]
    rows, grad = x.detach().reshape(15, 48), g.reshape(15, 40)
    w = layer.weight.detach()
    dx = lp.round_to(grad, r.gradient) @ lp.round_to(w, r.weight, 0)
    dw = lp.round_to(grad, r.gradient, 0).T @ lp.round_to(rows, r.input, 0)
    y = lp.round_to(rows, r.input) @ lp.round_to(w, r.weight).T + layer.bias
    np.testing.assert_allclose(low(x).detach().reshape(15, 40), y.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(x.grad.reshape(15, 48), dx, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(low.weight.grad, dw, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(low.bias.grad, grad.sum(0), rtol=1e-5, atol=1e-5)


def small():
    wt.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 10))


def test_names_files_and_masters_stay():
    model = small()
    low = lp.convert_to_low_precision_training(copy.deepcopy(model), module_filter_fn=lambda m, p: p != "4")
    assert [type(m) for m in (low[0], low[4])] == [lp.LowPrecisionLinear, nn.Linear]
    low.load_state_dict(model.state_dict())
    assert all(p.dtype is wt.float32 for p in low.parameters())
    assert "e8m0" in repr(low[0])


@pytest.mark.parametrize("recipe", ["float8", "mxfp8", "nvfp4"])
def test_a_model_learns(recipe):
    low = lp.convert_to_low_precision_training(small(), recipe)
    generator = wt.Generator().manual_seed(2)
    x, y = wt.randn(64, 64, generator=generator), wt.randint(0, 10, (64,), generator=generator)
    optimizer = wt.optim.AdamW(low.parameters(), lr=3e-3)
    for _ in range(30):
        with wt.autocast("cpu", dtype=wt.bfloat16):
            out = low(x)
        assert out.dtype is wt.bfloat16
        loss = nn.functional.cross_entropy(out.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5


def test_the_report_names_the_layers_that_break():
    model = small()
    generator = wt.Generator().manual_seed(2)
    x, y = wt.randn(64, 64, generator=generator), wt.randint(0, 10, (64,), generator=generator)

    def step(m):
        return nn.functional.cross_entropy(m(x).float(), y)

    fine = lp.precision_report(model, step, "mxfp8")
    assert [layer.name for layer in fine.layers] == ["0", "2", "4"] and fine.broken() == {}
    assert all(layer.cosine > 0.995 for layer in fine.layers)
    with wt.no_grad():
        model[2].weight[0, 0] = 1e6  # one number takes the scale of all
        model[2].weight[1:, 1] = 0
    report = lp.precision_report(model, step, "float8")
    broken = report.broken()
    assert "underflow of the weight" in broken["2"][0]
    assert report.layers[1].weight.underflow > 0.9 > report.layers[0].weight.underflow
    assert "breaks: 2: " in str(report)
    four = lp.precision_report(small(), step, "mxfp4")
    assert {"0", "2", "4"} == {*four.broken()} and four.layers[0].weight.saturation > 0
