"""Linear layers on weights of 8 and 4 bits: equal to the bit to their definition, hence on every machine, for
every number of rows and threads; near the weight that was rounded.

Legend: M rows, K inputs, N outputs, Q inputs in a group of activations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warptape as wt
from packed_weights import DTYPES, bits_of, drawn, inference
from warptape import _C, nn
from warptape.inference import QuantLinear, quantize_

ops: Any = _C._private
__all__ = ["inference"]  # a fixture of every test here
#: bits, group, symmetric
FORMATS = [(b, g, s) for b in (8, 4) for g in (0, 32, 64, 128) for s in (True, False)]
SOME = [(8, 0, True), (8, 32, True), (4, 32, False), (4, 128, True)]


def layer_of(n: int, k: int, bits: int, group: int, symmetric: bool, **options: Any) -> QuantLinear:
    linear = nn.Linear(k, n)
    linear.weight.copy_(drawn(n, k, seed=1))
    return QuantLinear(linear, bits, group, symmetric, **options)


def codes_of(layer: QuantLinear) -> np.ndarray:
    """[N, K in whole groups], by the layout's definition."""
    packed = layer.packed.numpy().astype(np.int64)
    if layer.bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=2)  # [P, steps, 2, 16, 4]
        packed = packed.transpose(0, 3, 1, 2, 4)
    else:
        packed = packed.transpose(0, 2, 1, 3)
    return packed.reshape(16 * len(packed), -1)[: layer.out_features]


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c in float32, rounded once (twice only where 64 bits do not suffice)."""
    return (a.astype(np.longdouble) * b + c).astype(np.float32)


def defined(layer: QuantLinear, x: np.ndarray) -> np.ndarray:
    """The layer's result in float32, before the bias, step by step as it is defined."""
    codes, q = codes_of(layer), layer.group or 128
    groups, f32 = codes.shape[1] // q, np.float32
    x = np.pad(x, ((0, 0), (0, codes.shape[1] - x.shape[1]))).reshape(len(x), groups, q)
    top = np.abs(x).max(-1)
    with np.errstate(divide="ignore"):
        inverse = np.where(top < 1e-30, f32(0), f32(127) / top).astype(f32)
    rounded = np.rint(x * inverse[..., None]).astype(np.int64)
    x_scale = np.where(top < 1e-30, f32(0), top / f32(127)).astype(f32)

    def by_output(t: wt.Tensor) -> np.ndarray:  # [groups, N]
        values = t.float().numpy().transpose(1, 0, 2).reshape(t.shape[1], -1)[:, : layer.out_features]
        return np.broadcast_to(values, (groups, layer.out_features))

    scales, total = by_output(layer.scales), np.zeros((len(x), layer.out_features), f32)
    for g in range(groups):
        sums = rounded[:, g] @ codes[:, g * q : (g + 1) * q].T
        if layer.minima is None:
            sums = sums - 2 ** (layer.bits - 1) * rounded[:, g].sum(-1, keepdims=True)
        total = fused(sums.astype(f32), scales[g] * x_scale[:, g, None], total)
        if layer.minima is not None:
            shift = x_scale[:, g] * rounded[:, g].sum(-1).astype(f32)
            total = fused(by_output(layer.minima)[g], shift[:, None], total)
    return total


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("bits", "group", "symmetric"), FORMATS)
def test_equal_to_the_definition(bits: int, group: int, symmetric: bool, dtype: wt.dtype) -> None:
    for n, k in ((70, 256), (19, 300), (1, 1), (130, 33)):
        layer = layer_of(n, k, bits, group, symmetric, dtype=dtype)
        x = drawn(9, k, dtype=dtype)
        bias = layer.bias
        assert bias is not None
        total = defined(layer, x.float().numpy()) + bias.float().numpy()
        expected = wt.from_numpy(total).to(dtype)
        assert np.array_equal(bits_of(layer(x)), bits_of(expected)), (n, k)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("bits", "group", "symmetric"), SOME)
def test_a_row_depends_on_itself_alone(bits: int, group: int, symmetric: bool, dtype: wt.dtype) -> None:
    for n, k in ((100, 33), (70, 2500), (250, 640)):
        layer, x = layer_of(n, k, bits, group, symmetric, dtype=dtype), drawn(40, k, dtype=dtype)
        wt.set_num_threads(1)
        alone = np.concatenate([bits_of(layer(x[i : i + 1])) for i in range(40)])
        for threads in (1, 2, 3):
            wt.set_num_threads(threads)
            for m in range(1, 41):
                assert np.array_equal(bits_of(layer(x[:m])), alone[:m]), (m, threads)
                assert np.array_equal(bits_of(layer(x[m:])), alone[m:]), (m, threads)


@pytest.mark.parametrize(("bits", "group", "symmetric"), SOME)
def test_many_rows_and_blocks(bits: int, group: int, symmetric: bool) -> None:
    layer, x = layer_of(66, 9000, bits, group, symmetric), drawn(1000, 9000)
    whole = bits_of(layer(x.view(8, 125, 9000))).reshape(1000, 66)
    for i in (0, 479, 480, 481, 999):
        assert np.array_equal(bits_of(layer(x[i])), whole[i])


@pytest.mark.parametrize(("bits", "group", "symmetric"), FORMATS)
def test_codes_are_the_nearest(bits: int, group: int, symmetric: bool) -> None:
    n, k = 37, 300
    layer, weight = layer_of(n, k, bits, group, symmetric), drawn(n, k, seed=1).numpy()
    size = group or k
    scales = layer.scales.float().numpy().transpose(0, 2, 1).reshape(-1, layer.scales.shape[1])[:n]
    step = np.abs(np.repeat(scales, size, axis=1)[:, :k])
    # One side of 16 codes about zero is shorter by a step; a minimum is rounded to float16.
    slack = 1.001 if symmetric and bits == 4 else 0.501 + (0.02 if bits == 4 else 0.3) * (group > 0)
    assert (np.abs(layer.dequantize().numpy() - weight) <= slack * step).all()
    ends = (np.abs(weight).max() if symmetric else np.ptp(weight)) / (2.0 ** (bits - symmetric) - 1)
    assert step.max() <= ends * 1.01
    assert not codes_of(layer)[:, k:].any()


@pytest.mark.parametrize(
    ("bits", "group", "error"), [(8, 0, 0.012), (8, 32, 0.01), (4, 32, 0.09), (4, 128, 0.13)]
)
def test_near_the_exact_product(bits: int, group: int, error: float) -> None:
    layer, x, weight = layer_of(200, 1024, bits, group, bits == 8), drawn(20, 1024), drawn(200, 1024, seed=1)
    exact = x.double().numpy() @ weight.double().numpy().T
    bias = layer.bias
    assert bias is not None
    difference = layer(x).numpy() - bias.numpy() - exact
    assert np.linalg.norm(difference) <= error * np.linalg.norm(exact)


def test_ends_of_the_codes() -> None:
    """The largest sums that there are: all codes 255, all activations 127, and their negative."""
    weight = wt.full((16, 1024), 3.0)
    weight[:, ::2] = 3.0 - 255.0 * 2**-6
    for bits, group in ((8, 128), (8, 0), (4, 128)):
        packed, scales, minima = ops._quantize_linear_weight(weight, bits, group, False)
        assert int(packed.max()) == (255 if bits == 8 else 15 * 17)
        packed = wt.full_like(packed, 255)
        for sign in (1.0, -1.0):
            x = wt.full((3, 1024), sign * 127)
            out = ops._quant_linear(x, packed, scales, minima, 16, bits, group).double().numpy()
            code = 255 if bits == 8 else 15
            exact = sign * 127 * 1024 * (scales.double().numpy()[0, 0] * code + minima.double().numpy()[0, 0])
            assert np.allclose(out, exact, rtol=1e-6)


def test_zeros_and_not_finite() -> None:
    for bits, group, symmetric in FORMATS:
        layer = layer_of(20, 40, bits, group, symmetric)
        x = drawn(5, 40)
        x[1] = 0.0
        x[2] = 1e-38
        x[3, 7] = float("nan")
        x[4, 7] = float("inf")
        out = layer(x)
        assert np.array_equal(out[1].numpy(), layer.bias.numpy())  # type: ignore[union-attr]
        assert bool(wt.isfinite(out[:3]).all()) and not bool(wt.isfinite(out[3:]).any())
        zeros = ops._quantize_linear_weight(wt.zeros(3, 40), bits, group, symmetric)
        assert not bool(zeros[1].float().any())
        constant = nn.Linear(40, 3, bias=False)
        constant.weight.fill_(0.25)
        found = QuantLinear(constant, bits, group, symmetric).dequantize().numpy()
        assert np.allclose(found, 0.25, rtol=2e-3)


def test_empty() -> None:
    layer = layer_of(20, 40, 8, 32, True)
    assert layer(wt.ones(0, 40)).shape == (0, 20)
    parts = ops._quantize_linear_weight(wt.ones(20, 0), 8, 32, True)
    assert not bool(ops._quant_linear(wt.ones(2, 0), *parts, None, 20, 8, 32).any())
    meta = ops._quantize_linear_weight(wt.ones(20, 40, device="meta"), 4, 32, False)
    assert [tuple(t.shape) for t in meta] == [(2, 8, 16, 4), (2, 2, 16), (2, 2, 16)]
    assert ops._quant_linear(wt.ones(2, 40, device="meta"), *meta, 20, 4, 32).shape == (2, 20)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (wt.ShapeError, "expected packed", {"x": wt.ones(2, 70)}),
        (wt.ShapeError, "at least one dim", {"x": wt.ones(())}),
        (wt.ShapeError, "expected packed", {"out_features": 33}),
        (ValueError, "negative", {"out_features": -1}),
        (ValueError, "bits 4 or 8", {"bits": 2}),
        (wt.ShapeError, "expected packed", {"bits": 4}),
        (ValueError, "group 32, 64 or 128", {"group": 48}),
        (wt.ShapeError, "expected scales", {"group": 64}),
        (wt.DtypeError, "expected scales", {"group": 0}),
        (wt.DtypeError, "float32 or bfloat16", {"x": wt.ones(2, 128, dtype=wt.float16)}),
        (wt.ShapeError, "bias", {"bias": wt.ones(19)}),
        (wt.DtypeError, "bias", {"bias": wt.ones(20, dtype=wt.bfloat16)}),
        (wt.ShapeError, "expected minima", {"minima": wt.ones(2, 1, 16, dtype=wt.float16)}),
    ],
    ids=str,
)
def test_refused(error: type[Exception], match: str, change: dict[str, Any]) -> None:
    packed, scales, minima = ops._quantize_linear_weight(wt.ones(20, 128), 8, 32, False)
    given = {"x": wt.ones(2, 128), "packed": packed, "scales": scales, "minima": minima}
    given |= {"out_features": 20, "bits": 8, "group": 32, "bias": None}
    with pytest.raises(error, match=match):
        ops._quant_linear(*(given | change).values())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_refused_weights(value: float) -> None:
    weight = wt.ones(20, 64)
    weight[7, 40] = value
    with pytest.raises(ValueError, match="not finite or too large"):
        ops._quantize_linear_weight(weight, 8, 32)
    with pytest.raises(wt.ShapeError, match=r"weight must be \[out, in\]"):
        ops._quantize_linear_weight(wt.ones(3), 8, 32)
    with pytest.raises(wt.DtypeError):
        ops._quantize_linear_weight(wt.ones(3, 3, dtype=wt.int32), 8, 32)


def test_quantize_a_model() -> None:
    model = nn.Sequential()
    model.add_module("up", nn.Linear(64, 96))
    model.add_module("act", nn.GELU())
    model.add_module("down", nn.Linear(96, 64, bias=False))
    model.add_module("lm_head", nn.Linear(64, 10))
    x = drawn(5, 64)
    before = model(x).numpy()
    assert quantize_(model, bits=8, group=32) is model
    assert type(model.lm_head) is nn.Linear and isinstance(model.down, QuantLinear)
    assert np.allclose(model(x).numpy(), before, atol=0.02)
    assert model(x.bfloat16().float()).dtype == wt.float32
    assert model.up.minima is None and quantize_(nn.Sequential(nn.Linear(8, 8)), 4)[0].minima is not None
    assert "bits=8, group=32, symmetric=True" in repr(model.up)
    other = layer_of(96, 64, 8, 32, True)
    other.load_state_dict(model.up.state_dict())
    assert np.array_equal(bits_of(other(x)), bits_of(model.up(x)))
    for wrong in ({"bits": 3}, {"group": 48}):
        with pytest.raises(ValueError, match="expected 4 or 8 bits"):
            quantize_(nn.Sequential(nn.Linear(8, 8)), **wrong)  # type: ignore[arg-type]
    with pytest.raises(wt.ShapeError, match="layer expects 64 features"):
        model.up(drawn(2, 60))


def test_no_gradient_but_of_the_input() -> None:
    with wt.inference_mode(False), wt.enable_grad():
        layer = QuantLinear(nn.Linear(4, 3))
        assert layer(wt.ones(2, 4, requires_grad=True)).requires_grad
        assert not layer(wt.ones(2, 4)).requires_grad
        assert list(layer.parameters()) == []
