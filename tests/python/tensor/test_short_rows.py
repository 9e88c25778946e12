"""Ops whose innermost rows are too short to be taken one at a time: operands are gathered by many rows at
once, from any place in a row on, and outputs scattered likewise."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as wt

SHAPES = [(3, 5, 7, 16), (70, 50), (2, 700, 3), (1300, 5), (4, 1, 900, 2), (2, 3, 4, 5, 6, 7)]
RANDOM = np.random.default_rng(0)


def drawn(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * 50).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8", "complex128"])
@pytest.mark.parametrize("shape", SHAPES)
def test_broadcast_operands(shape: tuple[int, ...], dtype: str) -> None:
    for dim in range(len(shape)):
        narrow, other = list(shape), [1] * len(shape)
        narrow[dim], other[dim] = 1, shape[dim]
        a, b = drawn(tuple(narrow), dtype), drawn(tuple(other), dtype)
        found = wt.from_numpy(a) + wt.from_numpy(b)
        assert (found.numpy() == a + b).all()


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_strided_operands_and_outputs(shape: tuple[int, ...], dtype: str) -> None:
    a, b = drawn(shape, dtype), drawn(shape, dtype)
    for order in (range(len(shape))[::-1], [*range(1, len(shape)), 0]):
        order = list(order)
        x, y = wt.from_numpy(a).permute(order), wt.from_numpy(b).permute(order)
        assert (x.contiguous().numpy() == a.transpose(order)).all()
        z = y.clone(memory_format=wt.contiguous_format)
        assert ((z - x).numpy() == (b - a).transpose(order)).all()
        out = wt.from_numpy(b.copy()).permute(order)
        out.add_(z)  # a packed operand into a strided output
        assert (out.numpy() == (b + b).transpose(order)).all()


@pytest.mark.parametrize("columns", [1, 2, 31, 32, 33, 64])
def test_rows_by_index(columns: int) -> None:
    a, rows = drawn((50, columns), "float32"), RANDOM.integers(-50, 50, (40, 3))
    for x in (a, np.asfortranarray(a), drawn((50, 2 * columns), "float32")[:, ::2]):
        assert (wt.from_numpy(x)[wt.from_numpy(rows)].numpy() == x[rows]).all()


def test_nonzero_of_strides() -> None:
    a = np.asfortranarray(RANDOM.random((60, 70)) < 0.1)
    assert (wt.from_numpy(a).nonzero().numpy() == np.argwhere(a)).all()
    assert (wt.from_numpy(a)[::2, 1::3].nonzero().numpy() == np.argwhere(a[::2, 1::3])).all()
