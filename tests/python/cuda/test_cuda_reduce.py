"""Reductions and scans on the device, against NumPy in double: every way of cutting the work (rows, columns,
any strides, parts that a second launch joins), rows that begin off 16 bytes, more dims than an index map
takes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import warptape as torch

pytestmark = pytest.mark.cuda

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}

# name: shape, how a tensor of it is seen, reduced dims
GEOMETRIES: dict[str, tuple[tuple[int, ...], Any, tuple[int, ...]]] = {
    "one": ((1,), lambda t: t, (0,)),
    "short rows": ((70, 3), lambda t: t, (1,)),
    "rows": ((9, 1024), lambda t: t, (1,)),
    "rows off 16 bytes": ((9, 1021), lambda t: t, (1,)),
    "rows from the middle": ((9, 700), lambda t: t[:, 3:], (1,)),
    "one long row, in parts": ((90_001,), lambda t: t, (0,)),
    "all of a matrix": ((130, 517), lambda t: t, (0, 1)),
    "rows of several runs": ((5, 7, 200), lambda t: t, (0, 2)),
    "runs of columns": ((67, 256), lambda t: t, (0,)),
    "single columns": ((67, 255), lambda t: t, (0,)),
    "columns, in parts": ((5000, 12), lambda t: t, (0,)),
    "a dim in the middle": ((4, 33, 20), lambda t: t, (1,)),
    "transposed": ((64, 80), lambda t: t.transpose(0, 1), (0,)),
    "every second": ((40, 900), lambda t: t[:, ::2], (1,)),
    "every second of a long row": ((30_000,), lambda t: t[::2], (0,)),
    "broadcast": ((1, 600), lambda t: t.expand(50, 600), (0, 1)),
    "broadcast, kept": ((600, 1), lambda t: t.expand(600, 7), (0,)),
    "nothing": ((6, 5), lambda t: t, ()),
    "more dims than a map takes": ((2,) * 18, lambda t: t, tuple(range(1, 18, 2))),
}


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if dtype is torch.bool:
        return torch.tensor(rng.random(shape) < 0.5)
    if not dtype.is_floating_point:
        return torch.tensor(rng.integers(0, 5, shape)).to(dtype)
    return torch.tensor(rng.standard_normal(shape)).to(dtype)


def check(got: Any, expected: np.ndarray, dtype: Any, scale: float = 1.0) -> None:
    assert got.device.type == "cuda" and got.dtype == dtype
    x = got.cpu().double().numpy()
    tolerance = TOLERANCES.get(dtype, 0.0)
    if dtype is torch.float16:
        expected = np.where(np.abs(expected) < 65_520, expected, np.inf)
    np.testing.assert_allclose(x, expected, rtol=tolerance, atol=tolerance * scale)


def view(name: str, dtype: Any) -> tuple[Any, np.ndarray, tuple[int, ...]]:
    """The tensor on the device, its values in double, the dims to reduce."""
    shape, see, dims = GEOMETRIES[name]
    base = numbers(shape, dtype)
    return see(base.to("cuda")), see(base).double().numpy(), dims


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool])
def test_sum(name: str, dtype: Any) -> None:
    x, a, dims = view(name, dtype)
    if not dims:
        check(torch.amax(x.unsqueeze(0), 0), a, dtype)
        return
    result = dtype if dtype.is_floating_point else torch.int64
    check(torch.sum(x, dims), a.sum(dims), result, np.sqrt(a.size))
    check(torch.sum(x, dims, dtype=torch.float64), a.sum(dims), torch.float64, np.sqrt(a.size))


@pytest.mark.parametrize("name", [n for n in GEOMETRIES if GEOMETRIES[n][2]])
@pytest.mark.parametrize("dtype", FLOATS)
def test_of_floats(name: str, dtype: Any) -> None:
    x, a, dims = view(name, dtype)
    count = a.size // a.sum(dims).size
    check(x.mean(dims), a.mean(dims), dtype)
    check(torch.logsumexp(x, dims), np.log(np.exp(a).sum(dims)), dtype)
    check(torch.var(x, dims, correction=0), a.var(dims), dtype)
    if count > 1:
        check(torch.std(x, dims), a.std(dims, ddof=1), dtype)
    for p in (2, 1, 3):
        norm = (np.abs(a) ** p).sum(dims) ** (1 / p)
        check(torch.linalg.vector_norm(x, p, dims), norm, dtype, np.sqrt(a.size))
    check(torch.linalg.vector_norm(x, float("inf"), dims), np.abs(a).max(dims), dtype)
    check(torch.linalg.vector_norm(x, float("-inf"), dims), np.abs(a).min(dims), dtype)
    check(torch.linalg.vector_norm(x, 0, dims), (a != 0).sum(dims), dtype)
    check(x.amax(dims), a.max(dims), dtype)
    check(x.amin(dims), a.min(dims), dtype)


@pytest.mark.parametrize("name", [n for n in GEOMETRIES if GEOMETRIES[n][2]])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.float32])
def test_truth_and_extremes(name: str, dtype: Any) -> None:
    x, a, dims = view(name, dtype)
    truth = torch.uint8 if dtype is torch.uint8 else torch.bool
    for values, b in ((x, a), (x == 1, a == 1), (x != 1, a != 1)):
        result = truth if values is x else torch.bool
        check(torch.any(values, dims), (b != 0).any(dims), result)
        check(torch.all(values, dims), (b != 0).all(dims), result)
    if dtype is not torch.bool:
        check(x.amax(dims), a.max(dims), dtype)
        check(x.amin(dims), a.min(dims), dtype)


def test_variance_far_from_zero() -> None:
    a = np.random.default_rng(1).standard_normal((3, 20_000)).astype(np.float32) + 1e4
    for x, dim in ((a, 1), (np.ascontiguousarray(a.T), 0)):
        got = torch.var(torch.tensor(x).to("cuda"), dim).cpu().numpy()
        np.testing.assert_allclose(got, x.astype(np.float64).var(dim, ddof=1), rtol=1e-4)


def test_logsumexp_of_infinities() -> None:
    inf = float("inf")
    x = torch.tensor(
        [[-inf] * 9, [1.0] * 8 + [inf], [-1000.0] * 9, [float("nan")] + [inf] * 8, [-inf] * 8 + [-2000.0]]
    )
    expected = np.array([-inf, inf, -1000 + np.log(9), np.nan, -2000.0])
    check(torch.logsumexp(x.to("cuda"), 1), expected, torch.float32)
    check(torch.logsumexp(x.t().contiguous().to("cuda"), 0), expected, torch.float32)


@pytest.mark.parametrize(
    "shape,dim", [((90_000,), 0), ((9, 1021), 1), ((2000, 12), 0), ((67, 255), 0), ((5, 900), 1)]
)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32])
def test_first_of_equal_extremes(shape: tuple[int, ...], dim: int, dtype: Any) -> None:
    a = np.random.default_rng(2).integers(-3, 4, shape)  # many are equal
    x = torch.tensor(a).to(dtype).to("cuda")
    for least, pick in ((False, np.argmax), (True, np.argmin)):
        index = pick(a, dim)
        values, places = (torch.min if least else torch.max)(x, dim)
        check(places, index, torch.int64)
        check(values, a.min(dim) if least else a.max(dim), dtype)
        check((torch.argmin if least else torch.argmax)(x, dim), index, torch.int64)


@pytest.mark.parametrize("places", [(0,), (89_999,), (300, 70_000)])
def test_first_nan_wins(places: tuple[int, ...]) -> None:
    a = np.random.default_rng(3).standard_normal(90_000).astype(np.float32)
    a[list(places)] = np.nan
    x = torch.tensor(a).to("cuda")
    for find in (torch.argmax, torch.argmin):
        assert find(x).item() == places[0]
    for value in (x.amax(), x.amin(), torch.max(x, 0)[0]):
        assert np.isnan(value.item())
    matrix = torch.tensor(np.ascontiguousarray(a.reshape(-1, 4))).to("cuda")
    assert torch.argmax(matrix, 0)[places[0] % 4].item() == places[0] // 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_of_no_elements(dtype: Any) -> None:
    x = torch.zeros(4, 0, 3, dtype=dtype).to("cuda")
    check(x.sum(1), np.zeros((4, 3)), dtype)
    check(torch.prod(x, 1), np.ones((4, 3)), dtype)
    assert not torch.any(x).item() and torch.all(x).item()
    assert x.sum(0).shape == (0, 3)


SCANS = [
    ((90_001,), 0),
    ((7, 3000), 1),
    ((7, 33), 1),
    ((3000, 7), 0),
    ((3, 500, 5), 1),
    ((50_000, 2), 0),
    ((4, 1, 6), 1),
]


@pytest.mark.parametrize("shape,dim", SCANS)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.bool])
def test_scans(shape: tuple[int, ...], dim: int, dtype: Any) -> None:
    base = numbers(shape, dtype)
    for x, a in (
        (base.to("cuda"), base.double().numpy()),
        (base.to("cuda").flip(0)[::2], base.flip(0)[::2].double().numpy()),
    ):
        result = dtype if dtype.is_floating_point else torch.int64
        check(torch.cumsum(x, dim), a.cumsum(dim), result, np.sqrt(shape[dim]))
        if dtype is torch.float64:
            check(torch.logcumsumexp(x, dim), np.logaddexp.accumulate(a, dim), dtype)
            check(torch.cumprod(x, dim), a.cumprod(dim), dtype, 1.0)
        if dtype is torch.int64:
            check(torch.cumprod(x, dim), a.astype(np.int64).cumprod(dim), dtype)
        if dtype is torch.bool:
            continue
        for f, accumulate, takes in (
            (torch.cummax, np.maximum.accumulate, np.greater_equal),
            (torch.cummin, np.minimum.accumulate, np.less_equal),
        ):
            values, places = f(x, dim)
            best = accumulate(a, dim)
            check(values, best, dtype)
            at = np.expand_dims(np.arange(a.shape[dim]), [d for d in range(a.ndim) if d != dim])
            last = np.maximum.accumulate(np.where(takes(a, best), at, 0), dim)
            check(places, last, torch.int64)


PROGRAM = """
import hashlib, numpy as np, warptape as torch
x = torch.tensor(np.random.default_rng(0).standard_normal(300_000).astype(np.float32)).to("cuda")
m, t = x.reshape(-1, 10), x.reshape(30, -1)
parts = [x.sum(), x.var(), torch.logsumexp(m, 0), m.sum(0), t.sum(1), t.mean(0), x.cumsum(0), m.cumsum(0)]
parts += [torch.softmax(t, 1), torch.softmax(t, 0), torch.nn.functional.layer_norm(m, (10,))]
w = torch.ones(10).to("cuda").requires_grad_(True)
torch.nn.functional.layer_norm(m, (10,), w).square().sum().backward()
parts.append(w.grad)
print(hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in parts)).hexdigest())
"""


def test_equal_bits_in_any_order() -> None:
    """The order in which blocks and threads run does not show (the emulated device can change it)."""

    def run(order: str) -> str:
        environment = dict(os.environ, WARPTAPE_EMULATOR_ORDER=order)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    first = run("forward")
    assert len(first) > 60
    assert all(run(order) == first for order in ("reverse", "shuffled"))
