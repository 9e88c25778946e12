"""Indexing, choosing and counting at the borders that the kernels have: pieces of indices, blocks of
elements, vectors of narrow types, and the order of writes to one place."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as torch

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex128"]
rng = np.random.default_rng(0)


def some(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.integers(0, 100, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 1])
def test_narrow_sums_are_rounded_once(dtype: torch.dtype, dim: int) -> None:
    top = 2048.0 if dtype == torch.float16 else 256.0  # where adding 1 alone would be lost
    src = torch.ones(3, 40) if dim else torch.ones(40, 3)
    index = torch.zeros(40, dtype=torch.int64)
    full = torch.full((3, 2) if dim else (2, 3), top, dtype=dtype)
    added = full.index_add(dim, index, src.to(dtype))
    assert added.select(dim, 0).tolist() == [top + 40] * 3
    assert added.select(dim, 1).tolist() == [top] * 3
    spread = index.unsqueeze(0 if dim else 1).expand(src.shape)
    assert torch.equal(full.scatter_add(dim, spread, src.to(dtype)), added)
    twice = full.index_add(dim, index, src.to(dtype), alpha=2)
    assert twice.select(dim, 0).tolist() == [top + 80] * 3
    assert twice.select(dim, 1).tolist() == [top] * 3


@pytest.mark.parametrize("n", [1, 15, 16, 17, 100])
def test_rows_of_narrow_floats_are_added_whole(n: int) -> None:
    src = torch.arange(2 * n).reshape(2, n).to(torch.float16)
    out = torch.zeros(3, n, dtype=torch.float16).index_add(0, torch.tensor([2, 2]), src)
    assert torch.equal(out[2], src[0] + src[1]) and not bool(out[:2].any())


@pytest.mark.parametrize("place", [0, 1023, 1024, 2999])
@pytest.mark.parametrize("bad", [7, -1, 2**62, -(2**63)])
def test_a_bad_index_is_found_wherever_it_is(place: int, bad: int) -> None:
    index = torch.zeros(3000, dtype=torch.int64)
    index[place] = bad
    x = torch.arange(7.0)
    with pytest.raises(RuntimeError):
        x.gather(0, index)
    with pytest.raises(IndexError):
        x.index_select(0, index)
    if bad != -1:
        with pytest.raises(IndexError):
            x.take(index)
        with pytest.raises(IndexError):
            x.put_(index, torch.ones(3000))
        assert torch.equal(x, torch.arange(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("flat", [True, False])
def test_the_last_write_to_a_place_stays(dtype: str, flat: bool) -> None:
    index = rng.integers(0, 5, 2500)
    values = some((2500,) if flat else (4, 2500), dtype)
    want = np.zeros((5,) if flat else (4, 5), dtype)
    for i, at in enumerate(index):
        want[..., at] = values[..., i]
    for turned in (False, True) if not flat else (False,):
        got = torch.zeros(*(want.T.shape if turned else want.shape), dtype=getattr(torch, dtype))
        view = got.t() if turned else got
        view[..., torch.from_numpy(index)] = torch.from_numpy(values)
        assert np.array_equal(view.numpy(), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_masks_over_several_blocks(dtype: str, share: float) -> None:
    x, mask = some((3, 32768 + 77), dtype), rng.random((3, 32768 + 77)) < share
    wx, wm = torch.from_numpy(x), torch.from_numpy(mask)
    assert np.array_equal(wx.masked_select(wm).numpy(), x[mask])
    assert np.array_equal(wx.t().masked_select(wm.t()).numpy(), x.T[mask.T])
    zeros = torch.from_numpy((x * mask).astype(dtype))
    assert np.array_equal(zeros.nonzero().numpy(), np.argwhere(x * mask))
    assert np.array_equal(zeros.t().nonzero().numpy(), np.argwhere((x * mask).T))


def test_narrow_floats_that_are_zero() -> None:
    bits = torch.from_numpy(np.array([0, -32768, 1, 0x7E00, -1, 0x7C00], dtype=np.int16))
    for dtype in (torch.float16, torch.bfloat16):
        assert bits.view(dtype).nonzero().flatten().tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 15, 33, 500])
def test_flip(dtype: str, n: int) -> None:
    x = some((3, n), dtype)
    for dims in ((0,), (1,), (0, 1)):
        assert np.array_equal(torch.from_numpy(x).flip(dims).numpy(), np.flip(x, dims))
        assert np.array_equal(torch.from_numpy(x).t().flip(dims).numpy(), np.flip(x.T, dims))


@pytest.mark.parametrize("dtype", DTYPES[1:6])
def test_bincount_of_every_integer(dtype: str) -> None:
    x, weights = some((1000,), dtype), rng.random(1000)
    wx = torch.from_numpy(x)
    assert np.array_equal(torch.bincount(wx).numpy(), np.bincount(x))
    got = torch.bincount(wx[::2], torch.from_numpy(weights[::2])).numpy()
    assert np.allclose(got, np.bincount(x[::2], weights[::2]))
    assert torch.bincount(wx[:0]).tolist() == []
    if dtype != "uint8":
        with pytest.raises(RuntimeError, match="non-negative"):
            torch.bincount(-wx - 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_narrow_float_has_its_place(dtype: torch.dtype) -> None:
    x = torch.from_numpy(np.arange(-32768, 32768).astype(np.int16)).view(dtype)
    wide = x.float()
    edges = torch.tensor([-2.0, -0.0, 1e-3, 1.0, 3.0])
    for right in (False, True):
        got = torch.bucketize(x, edges.to(dtype), right=right)
        assert torch.equal(got, torch.bucketize(wide, edges.to(dtype).float(), right=right))
    assert torch.equal(x.sort(stable=True).indices, wide.sort(stable=True).indices)
    near = x[(wide >= -4) & (wide <= 4)]
    once = sum((torch.histc(part, 9, -4, 4).float() for part in near.split(200)), torch.zeros(9))
    assert torch.equal(torch.histc(near.repeat(3), 9, -4, 4), (3 * once).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES[:6])
def test_every_integer_is_finite(dtype: str) -> None:
    for x in (torch.from_numpy(some((4, 6), dtype)), torch.from_numpy(some((4, 6), dtype)).t()):
        assert bool(torch.isfinite(x).all())
        assert not bool(torch.isinf(x).any() or torch.isnan(x).any())
        assert torch.isnan(x).shape == x.shape and torch.isnan(x).dtype == torch.bool
