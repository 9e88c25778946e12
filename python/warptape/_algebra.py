"""The names of linear algebra at the top level: functions and Tensor methods."""

from __future__ import annotations

from typing import Any

from . import _C, linalg
from ._arguments import checked
from ._tensor import Tensor
from .linalg._lapack import named
from .linalg.factors import unpacked

_ops = _C._functions

__all__ = [
    "chain_matmul",
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "cross",
    "det",
    "dist",
    "inverse",
    "logdet",
    "lu",
    "lu_solve",
    "lu_unpack",
    "matrix_exp",
    "matrix_power",
    "pinverse",
    "qr",
    "slogdet",
    "svd",
    "triangular_solve",
]

_LUUnpack = named("lu_unpack", "P", "L", "U")
_SVD = named("svd", "U", "S", "V")
_TriangularSolve = named("triangular_solve", "solution", "cloned_coefficient")

det = linalg.det
inverse = linalg.inv
matrix_exp = linalg.matrix_exp
matrix_power = linalg.matrix_power
slogdet = linalg.slogdet


def logdet(input: Tensor) -> Tensor:
    """The logarithms (*) of the determinants of (*, n, n); -inf for 0, nan below unless they are complex."""
    sign, log = linalg.slogdet(input)
    if input.is_complex():
        return sign.log() + log
    return _ops.where(sign < 0, float("nan"), log)


def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """`linalg.cholesky` under its older name."""
    return linalg.cholesky(input, upper=upper)


def cholesky_inverse(input: Tensor, upper: bool = False) -> Tensor:
    """The inverse of a Hermitian matrix from its Cholesky factor (*, n, n)."""
    identity = _ops.eye(input.shape[-1], dtype=input.dtype, device=input.device)
    return cholesky_solve(identity.expand(input.shape), input, upper)


def cholesky_solve(input: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X with A X = `input` (*, n, k), from A's Cholesky factor L (*, n, n)."""
    lower = L.mH if upper else L
    return linalg.solve_triangular(lower.mH, linalg.solve_triangular(lower, input, upper=False), upper=True)


def lu(A: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    """`linalg.lu_factor` under its older name; with `get_infos`, `linalg.lu_factor_ex`."""
    found = linalg.lu_factor_ex(A, pivot=pivot, check_errors=not get_infos)
    return found if get_infos else tuple(found[:2])


def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """`linalg.lu_solve` under its older name."""
    return linalg.lu_solve(LU_data, LU_pivots, b)


def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> Any:
    """`linalg.lu`'s P, L and U from `linalg.lu_factor`'s result; what is not asked for is empty.

    Raises:
        DtypeError: pivots that are not int32.
        RuntimeError: pivots that are no rows.
    """
    if LU_pivots.dtype is not _C.int32:
        raise _C.DtypeError(f"lu_unpack: expected LU_pivots of int32, got {LU_pivots.dtype}")
    if bool(((LU_pivots < 1) | (LU_pivots > LU_data.shape[-2])).any()):
        raise RuntimeError("pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive")
    P, L, U = unpacked(LU_data, LU_pivots)
    empty = LU_data.new_empty(0)
    return _LUUnpack(P if unpack_pivots else empty, *((L, U) if unpack_data else (empty, empty)))


def triangular_solve(
    input: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    """`linalg.solve_triangular` under its older name: (solution, cloned_coefficient)."""
    matrix = A.mT if transpose else A
    found = linalg.solve_triangular(matrix, input, upper=upper != transpose, unitriangular=unitriangular)
    return _TriangularSolve(found, A.expand((*found.shape[:-2], *A.shape[-2:])).clone())


def qr(input: Tensor, some: bool = True) -> Any:
    """`linalg.qr` under its older name; without `some`, in mode "complete"."""
    return linalg.qr(input, "reduced" if some else "complete")


def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> Any:
    """`linalg.svd` under its older name: (U, S, V), A = U diag(S) V^H; zeros for U and V without
    `compute_uv`."""
    if not compute_uv:
        m, n = input.shape[-2:]
        batch = input.shape[:-2]
        return _SVD(input.new_zeros((*batch, m, m)), linalg.svdvals(input), input.new_zeros((*batch, n, n)))
    U, S, Vh = linalg.svd(input, full_matrices=not some)
    return _SVD(U, S, Vh.mH)


def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """`linalg.pinv` under its older name."""
    return linalg.pinv(input, rtol=rcond)


def chain_matmul(*matrices: Tensor, out: Tensor | None = None) -> Tensor:
    """`linalg.multi_dot` under its older name."""
    found = matrices[0] if len(matrices) == 1 else linalg.multi_dot(matrices)
    return found if out is None else _C._write_out("chain_matmul", out, found)


def cross(input: Tensor, other: Tensor, dim: int | None = None, *, out: Tensor | None = None) -> Tensor:
    """The cross products of vectors along `dim`; without it, along the first dim of size 3."""
    if dim is None:
        sized = [i for i, n in enumerate(input.shape) if n == 3]
        if not sized:
            raise _C.ShapeError("cross: no dimension of size 3 in input")
        dim = sized[0]
    found = linalg.cross(input, other, dim=dim)
    return found if out is None else _C._write_out("cross", out, found)


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference of all elements."""
    return linalg.vector_norm(input - other, p)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
    if _name not in ("chain_matmul", "lu_unpack"):
        setattr(Tensor, _name, globals()[_name])
