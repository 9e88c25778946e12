"""Norms of vectors and matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _C
from .._tensor import Tensor

__all__ = ["matrix_norm", "norm", "vector_norm"]

vector_norm = _C._linalg.vector_norm
_INF = float("inf")


def matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The norm of the matrices that lie along two dims of `A`.

    Args:
        A: a floating point tensor of at least two dims.
        ord: "fro", "nuc" (sum of the singular values), 2, -2 (the largest, the smallest), 1, -1, inf or -inf.
        dim: the dims of the rows and of the columns.
        keepdim: whether the two dims stay, with size 1.
        dtype: what `A` is cast to first.

    Raises:
        RuntimeError: for another order, or when `dim` does not name two different dims.
    """
    row, column = (axis % A.ndim if -A.ndim <= axis < A.ndim else axis for axis in dim)
    if row == column:
        raise RuntimeError(f"linalg.matrix_norm: expected two different dims, got {tuple(dim)}")
    x = A if dtype is None else A.to(dtype)
    if ord == "fro":
        return vector_norm(x, 2, (row, column), keepdim)
    if ord in ("nuc", 2, -2):
        from .decompositions import svdvals

        values = svdvals(x.movedim((row, column), (-2, -1)))
        # Of equal values amax and amin share the gradient.
        found = values.sum(-1) if ord == "nuc" else values.amax(-1) if ord == 2 else values.amin(-1)
        return (
            found.reshape([1 if i in (row, column) else n for i, n in enumerate(x.shape)])
            if keepdim
            else found
        )
    if isinstance(ord, str) or abs(ord) not in (1, _INF):
        raise RuntimeError(
            f"linalg.matrix_norm: expected order 'fro', 'nuc', 2, -2, 1, -1, inf or -inf, got {ord!r}"
        )
    summed, kept = (row, column) if abs(ord) == 1 else (column, row)
    sums = x.abs().sum(summed, keepdim=True)
    found = sums.amax(kept, keepdim=True) if ord > 0 else sums.amin(kept, keepdim=True)
    return found if keepdim else found.squeeze((row, column))


def norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The norm of vectors or matrices in `A`.

    Args:
        A: a floating point tensor.
        ord: the order; None is the 2-norm of all elements along `dim`.
        dim: one dim for vectors, two for matrices; None takes all of `A`.
        keepdim: whether the reduced dims stay, with size 1.
        dtype: what `A` is cast to first.

    Raises:
        RuntimeError: for an order without meaning, or one given with neither dims nor a vector or matrix.
    """
    if ord is None:
        return vector_norm(A if dtype is None else A.to(dtype), 2, dim, keepdim)
    pair = dim is not None and not isinstance(dim, int) and len(dim) == 2
    if dim is None and A.ndim not in (1, 2):
        raise RuntimeError(
            f"linalg.norm: expected a vector or a matrix with ord and no dim, got {A.ndim} dims"
        )
    if pair or (dim is None and A.ndim == 2):
        return matrix_norm(A, ord, dim if pair else (-2, -1), keepdim, dtype=dtype)
    if isinstance(ord, str):
        raise RuntimeError(f"linalg.norm: order {ord!r} is for matrices; expected two dims, got {dim}")
    return vector_norm(A if dtype is None else A.to(dtype), ord, dim, keepdim)
