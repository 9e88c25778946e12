"""Reductions and running reductions in the element's own type: integers narrower than int64, and complex
numbers."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as torch

NARROW = ["bool", "uint8", "int8", "int16", "int32"]
SHAPES = [(1,), (37,), (5, 1000), (300, 7), (3, 40, 33), (2, 70000), (200000,)]
rng = np.random.default_rng(0)


def whole_range(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("shape", SHAPES)
def test_extremes_of_integers(dtype: str, shape: tuple[int, ...]) -> None:
    whole = whole_range(shape, dtype)
    for x in (whole, np.full(shape, whole.max()), np.full(shape, whole.min())):
        w = torch.from_numpy(x)
        assert w.amax().item() == x.max() and w.amin().item() == x.min()
        for d in range(x.ndim):
            assert np.array_equal(w.amax(d).numpy(), x.max(d)) and np.array_equal(w.amin(d).numpy(), x.min(d))
            turned = w.transpose(0, d)
            assert np.array_equal(turned.amax(-1).numpy(), x.swapaxes(0, d).max(-1))
            assert np.array_equal(w.any(d).numpy().astype(bool), x.any(d))
            assert np.array_equal(w.all(d).numpy().astype(bool), x.all(d))
            low, high = torch.aminmax(w, dim=d)
            assert np.array_equal(low.numpy(), x.min(d)) and np.array_equal(high.numpy(), x.max(d))


def test_truth_of_bytes_is_one_or_zero() -> None:
    x = torch.tensor([[0, 2], [128, 255], [0, 0]], dtype=torch.uint8)
    assert x.any(1).tolist() == [1, 1, 0] and x.all(1).tolist() == [0, 1, 0]
    assert x.any(1).dtype == torch.uint8
    assert (x.view(torch.int8)).any(0).tolist() == [True, True]
    assert torch.zeros(0, 3, dtype=torch.uint8).all(0).tolist() == [1, 1, 1]


def running(x: np.ndarray, largest: bool) -> tuple[list[float], list[int]]:
    values, places = [x[0]], [0]
    for i, v in enumerate(x[1:], 1):
        best = values[-1]
        take = v != v or (best == best and (v >= best if largest else v <= best))
        values.append(v if take else best)
        places.append(i if take else places[-1])
    return values, places


@pytest.mark.parametrize("dtype", [*NARROW, "int64", "float16", "float32", "float64"])
def test_running_extremes_take_the_last_of_equals(dtype: str) -> None:
    rows = rng.integers(0, 2 if dtype == "bool" else 4, (5, 200)).astype(dtype)
    if dtype.startswith("float"):
        rows[1, 50:60:3] = np.nan
        rows[2] = np.where(rng.random(200) < 0.5, -0.0, 0.0)
    w = torch.from_numpy(rows)
    for largest, op in ((True, torch.cummax), (False, torch.cummin)):
        along, down = op(w, 1), op(w.t().contiguous(), 0)
        for r, row in enumerate(rows):
            values, places = running(row, largest)
            assert np.array_equal(along.values[r].numpy(), np.array(values), equal_nan=dtype[0] == "f")
            assert along.indices[r].tolist() == places
            assert down.indices[:, r].tolist() == places


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("shape", [(1,), (31,), (3, 50), (2, 3, 17), (2, 1500), (130000,)])
def test_complex_sums_and_products(dtype: str, shape: tuple[int, ...]) -> None:
    x = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    x /= np.abs(x)
    w = torch.from_numpy(x.astype(dtype))
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == "complex64" else {"rtol": 1e-9, "atol": 1e-9}
    assert np.allclose(w.sum().item(), x.sum(), **close) and np.allclose(w.prod().item(), x.prod(), **close)
    for d in range(x.ndim):
        for v, want in ((w, x), (w.transpose(0, d).contiguous().transpose(0, d), x)):
            assert np.allclose(v.sum(d).numpy(), want.sum(d), **close)
            assert np.allclose(v.mean(d, keepdim=True).numpy(), want.mean(d, keepdims=True), **close)
            assert np.allclose(v.prod(d).numpy(), want.prod(d), **close)
            assert np.allclose(v.cumsum(d).numpy(), want.cumsum(d), **close)
            assert np.allclose(v.cumprod(d).numpy(), want.cumprod(d), **close)
    assert torch.zeros(0, 3, dtype=w.dtype).prod(0).tolist() == [1, 1, 1]


def test_gradients_of_complex_products() -> None:
    x = torch.randn(3, 5, dtype=torch.complex128)
    x[1, 2] = 0
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda v: v.prod(1), (x,))
    assert torch.autograd.gradcheck(lambda v: v.prod(), (x,))
    assert torch.autograd.gradcheck(lambda v: v.cumprod(1), (x,))
    assert torch.autograd.gradgradcheck(lambda v: v.cumprod(0), (x,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nansum_is_the_sum_of_the_others(dtype: torch.dtype) -> None:
    x = torch.randn(40, 300).to(dtype)
    x[torch.rand(40, 300) < 0.2] = float("nan")
    x[3] = float("nan")
    x[4, 5] = float("inf")
    for dim in (None, 0, 1):
        assert torch.equal(x.nansum(dim), x.masked_fill(x.isnan(), 0).sum(dim))
    assert torch.equal(x.nansum(1, dtype=torch.float64), x.double().masked_fill(x.isnan(), 0).sum(1))
