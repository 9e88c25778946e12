"""LU factors with partial pivoting, and what is solved with them."""

from __future__ import annotations

from typing import Any

from .. import _C
from .._tensor import Tensor
from ..autograd import Function
from ._elimination import factors, row_order
from ._lapack import LinAlgError, check_equations, check_matrices, check_square, identity, named, on_arrays

__all__ = ["lu", "lu_factor", "lu_factor_ex", "lu_solve"]

_LU = named("linalg_lu", "P", "L", "U")
_LUFactor = named("linalg_lu_factor", "LU", "pivots")
_LUFactorEx = named("linalg_lu_factor_ex", "LU", "pivots", "info")


def _order(pivots: Tensor, rows: int) -> Tensor:
    return on_arrays(lambda steps: row_order(steps, rows), pivots)


def _rows(x: Tensor, order: Tensor) -> Tensor:
    """The rows of x (*, m, n) in an order (*, m); batches broadcast."""
    from .. import broadcast_shapes

    shape = (*broadcast_shapes(x.shape[:-2], order.shape[:-1]), *x.shape[-2:])
    return x.expand(shape).gather(-2, order.unsqueeze(-1).expand(shape))


class _Factors(Function):
    """For squares L**-1 dA U**-1 is L**-1 dL, strictly lower, plus dU U**-1, upper; what lies below or right
    of the square depends on it by a triangular system."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        LU, pivots, info = on_arrays(factors, A)
        ctx.save_for_backward(LU, pivots)
        ctx.mark_non_differentiable(pivots, info)
        return LU, pivots, info

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Tensor:
        from .. import cat
        from .solvers import solve_triangular

        LU, pivots = ctx.saved_tensors
        m, n = LU.shape[-2:]
        k = min(m, n)
        square, inner = LU[..., :k, :k], grad[..., :k, :k]
        L, U = square.tril(-1) + identity(square), square.triu()
        gL, gU = inner.tril(-1), inner.triu()
        rest = None
        if m > n:  # L2 = A2 U**-1
            rest = solve_triangular(U.mH, grad[..., k:, :], upper=False, left=False)
            gU = gU - LU[..., k:, :].mH @ rest
        elif m < n:  # U2 = L**-1 A2
            rest = solve_triangular(L.mH, grad[..., k:], upper=True)
            gL = gL - rest @ LU[..., k:].mH
        middle = (L.mH @ gL).tril(-1) + (gU @ U.mH).triu()
        found = solve_triangular(L.mH, middle, upper=True)
        found = solve_triangular(U.mH, found, upper=False, left=False)
        if rest is not None:
            found = cat([found, rest], -2 if m > n else -1)
        return _rows(found, _order(pivots, m).argsort(-1))


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """As `lu_factor`, with the place, from 1, of the first zero on U's diagonal as `info` (*) of int32, 0
    where there is none.

    Raises:
        LinAlgError: with `check_errors`, for such a zero.
    """
    check_matrices("linalg.lu_factor", A)
    if not pivot:
        raise RuntimeError("linalg.lu_factor: LU without pivoting is not implemented on the CPU")
    LU, pivots, info = _Factors.apply(A)
    if check_errors and info.any():
        which = int(info.flatten().nonzero()[0])
        batch = f"(Batch element {which}): " if info.ndim else ""
        place = int(info.flatten()[which])
        raise LinAlgError(
            f"linalg.lu_factor: {batch}U[{place},{place}] is zero and using it on lu_solve would result in a "
            "division by zero. If you still want to perform the factorization, consider calling linalg.lu(A, "
            "pivot) or linalg.lu_factor_ex(A, pivot)"
        )
    return _LUFactorEx(LU, pivots, info)


def lu_factor(A: Tensor, *, pivot: bool = True) -> Any:
    """The factors of A = P L U in one tensor, and the exchanges of rows that P is.

    Shapes: A and LU (*, m, n), L below the diagonal without its ones, U above and on it; pivots (*, k) of
    int32, k = min(m, n): step i exchanged the rows i and pivots[i], counted from 1.

    Raises:
        LinAlgError: a zero on U's diagonal.
        RuntimeError: `pivot=False`.
        ShapeError, DtypeError: no matrices in single or double precision.
    """
    return _LUFactor(*lu_factor_ex(A, pivot=pivot, check_errors=True)[:2])


def unpacked(LU: Tensor, pivots: Tensor) -> Any:
    """P (*, m, m), L (*, m, k) and U (*, k, n) of packed factors."""
    m, n = LU.shape[-2:]
    k = min(m, n)
    order = _order(pivots[..., :k], m)
    P = LU.new_zeros((*order.shape, m)).scatter(-2, order.unsqueeze(-2), 1)
    ones = _C._functions.eye(m, k, dtype=LU.dtype, device=LU.device)
    return P, LU[..., :k].tril(-1) + ones, LU[..., :k, :].triu()


def lu(A: Tensor, *, pivot: bool = True) -> Any:
    """A permutation P, L with ones on its diagonal and nothing above, and upper triangular U, with
    P L U = A.

    Shapes: A (*, m, n), P (*, m, m), L (*, m, k), U (*, k, n), k = min(m, n).

    Raises:
        RuntimeError: `pivot=False`.
        ShapeError, DtypeError: no matrices in single or double precision.
    """
    return _LU(*unpacked(*lu_factor_ex(A, pivot=pivot)[:2]))


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """X with A X = B, or X A = B without `left`, or of A**H with `adjoint`, by the factors of `lu_factor`.

    Shapes: LU (*, n, n), pivots (*, n), B (*, n, k), or (*, k, n) without `left`; batches broadcast.

    Raises:
        ShapeError, DtypeError: no square matrices in single or double precision, or pivots that are not
            int32 (*, n).
    """
    from .solvers import solve_triangular

    check_square("linalg.lu_solve", LU)
    check_matrices("linalg.lu_solve", B)
    if not left:
        return lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
    check_equations("linalg.lu_solve", LU, B)
    if pivots.dtype is not _C.int32:
        raise _C.DtypeError(f"linalg.lu_solve: pivots should be of int32, got {pivots.dtype}")
    if pivots.shape != LU.shape[:-1]:
        raise _C.ShapeError(
            f"linalg.lu_solve: Number of pivots per batch should be same as the dimension of the matrix, got "
            f"pivots {tuple(pivots.shape)} for LU {tuple(LU.shape)}"
        )
    order = _order(pivots, LU.shape[-1])
    if adjoint:
        found = solve_triangular(LU.mH, B, upper=False)
        found = solve_triangular(LU.mH, found, upper=True, unitriangular=True)
        return _rows(found, order.argsort(-1))
    found = solve_triangular(LU, _rows(B, order), upper=False, unitriangular=True)
    return solve_triangular(LU, found, upper=True)
