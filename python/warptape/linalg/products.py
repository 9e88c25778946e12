"""Products of vectors, and what else of linear algebra is a few ops."""

from __future__ import annotations

from .. import _C
from .._tensor import Tensor

__all__ = ["cross", "diagonal", "matmul", "multi_dot", "vander", "vecdot"]

_ops = _C._functions
multi_dot = _C._linalg.multi_dot
matmul = _ops.matmul


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross products of vectors of three elements along `dim`; the shapes broadcast.

    Raises:
        ShapeError: other sizes than 3 along `dim`.
    """
    if input.ndim != other.ndim or input.size(dim) != 3 or other.size(dim) != 3:
        raise _C.ShapeError(
            f"linalg.cross: inputs dimension {dim} must have length 3, got shapes {tuple(input.shape)} and "
            f"{tuple(other.shape)}"
        )
    (a1, a2), (b1, b2) = ((t.roll(-1, dim), t.roll(-2, dim)) for t in (input, other))
    return a1 * b2 - a2 * b1


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The dot products of vectors along `dim`, x conjugated; the shapes broadcast."""
    return (x.conj() * y).sum(dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A view of the diagonals of matrices."""
    return A.diagonal(offset, dim1, dim2)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """The powers 0 … N - 1 of each element of (*, n), as (*, n, N); N is n unless given.

    Raises:
        RuntimeError: N below 2.
        DtypeError: bool.
    """
    if x.dtype is _C.bool:
        raise _C.DtypeError("linalg.vander: expected a floating point, complex or integer tensor, got bool")
    x = x.reshape(1) if x.ndim == 0 else x
    n = x.shape[-1] if N is None else N
    if n < 2:
        raise RuntimeError(f"linalg.vander: N must be greater than 1, got {n}")
    ones = _ops.ones((*x.shape, 1), dtype=x.dtype, device=x.device)
    factors = x.unsqueeze(-1).expand((*x.shape, n - 1))
    return _ops.cat((ones, factors), -1).cumprod(-1)
