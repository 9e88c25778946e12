"""Fills of device tensors against the formulas of kernels/random/random.h in NumPy, by the same generator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warptape as torch

pytestmark = pytest.mark.cuda

SEED = 0x1234_5678_9ABC
N = 4099  # not a multiple of what a thread takes
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FILLS = 1 << 63  # calls of fills are numbered from here on, apart from those of dropout


def words(count: int, call: int = FILLS) -> np.ndarray:
    """The numbers of Philox4x32-10 for SEED and `call`, as uint64."""
    low = np.uint64(0xFFFFFFFF)
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    c = [
        blocks & low,
        blocks >> np.uint64(32),
        np.full_like(blocks, call & 0xFFFFFFFF),
        np.full_like(blocks, call >> 32),
    ]
    k = [SEED & 0xFFFFFFFF, SEED >> 32]
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (q >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]),
            q & low,
            (p >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]),
            p & low,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, 1).reshape(-1)[:count]


def unit(n: int, wide: bool) -> np.ndarray:
    if wide:
        w = words(2 * n)
        return ((w[::2] << np.uint64(32) | w[1::2]) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (words(n) >> np.uint64(8)).astype(np.float64) * 2.0**-24


def draw(method: str, dtype: Any, *args: Any) -> np.ndarray:
    torch.manual_seed(SEED)
    return getattr(torch.empty(N, dtype=dtype, device="cuda"), method)(*args).double().cpu().numpy()


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype: Any) -> None:
    exact = unit(N, dtype is torch.float64) * 3 - 1
    expected = torch.tensor(exact).to(dtype).double().numpy()
    expected[expected >= 2] = -1
    got = draw("uniform_", dtype, -1.0, 2.0)
    eps = torch.finfo(dtype).eps
    np.testing.assert_allclose(got, expected, rtol=eps, atol=eps)
    assert got.max() < 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_and_exponential(dtype: Any) -> None:
    wide = dtype is torch.float64
    if wide:
        u = unit(N + 1, True)
        u, v = 1 - u[::2], u[1::2]
    else:
        w = words(N + 1).astype(np.float64)
        u, v = w[::2] * 2.0**-32 + 2.0**-33, w[1::2] * 2.0**-32
    radius = np.sqrt(-2 * np.log(u))
    pairs = np.stack([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)], 1).reshape(-1)[:N]
    tolerance = max(torch.finfo(dtype).eps, 1e-12 if wide else 3e-6)
    np.testing.assert_allclose(
        draw("normal_", dtype, 0.5, 2.0), pairs * 2 + 0.5, rtol=tolerance, atol=5 * tolerance
    )
    exponential = -np.log1p(-unit(N, wide)) / 3
    np.testing.assert_allclose(draw("exponential_", dtype, 3.0), exponential, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.bool, torch.uint8, torch.int64])
def test_bernoulli(dtype: Any) -> None:
    assert (draw("bernoulli_", dtype, 0.3) == (words(N) < 0.3 * 2.0**32)).all()


def test_bernoulli_of_probabilities() -> None:
    p = np.linspace(0, 1, N)
    torch.manual_seed(SEED)
    got = torch.bernoulli(torch.tensor(p).cuda()).cpu().numpy()
    assert (got == (words(N) < p * 2.0**32)).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.uint8])
def test_ranges(dtype: Any) -> None:
    expected = words(N) % np.uint64(100) + np.uint64(5)
    assert (draw("random_", dtype, 5, 105) == expected).all()


def test_ranges_beyond_32_bits() -> None:
    w = words(2 * N)
    expected = (w[::2] << np.uint64(32) | w[1::2]) % np.uint64(2**40 + 3)
    torch.manual_seed(SEED)
    got = torch.empty(N, dtype=torch.int64, device="cuda").random_(0, 2**40 + 3).cpu().numpy()
    assert (got.astype(np.uint64) == expected).all()
