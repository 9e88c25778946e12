"""Systems of equations, inverses, determinants and functions of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import _C
from .._tensor import Tensor
from ..autograd import Function
from ._elimination import factors, log_determinant, solution, triangular_solution
from ._lapack import LinAlgError, check_equations, check_matrices, check_square, identity, named, on_arrays
from .decompositions import eigh, eigvalsh, svd, svdvals

__all__ = [
    "cond",
    "det",
    "inv",
    "inv_ex",
    "lstsq",
    "matrix_exp",
    "matrix_power",
    "matrix_rank",
    "pinv",
    "slogdet",
    "solve",
    "solve_triangular",
    "tensorinv",
    "tensorsolve",
]

_ops = _C._functions
_SLogDet = named("linalg_slogdet", "sign", "logabsdet")
_LstSq = named("linalg_lstsq", "solution", "residuals", "rank", "singular_values")
_InvEx = named("linalg_inv_ex", "inverse", "info")


def _solved(a: Any, b: Any) -> Any:
    import numpy as np

    return np.linalg.solve(a, b) if np.isfinite(a).all() else solution(a, b)


class _Solve(Function):
    """X with A X = B."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor) -> Tensor:
        X = on_arrays(_solved, A, B)
        ctx.shapes = A.shape, B.shape
        ctx.save_for_backward(A, X)
        return X

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        A, X = ctx.saved_tensors
        gB = _Solve.apply(A.mH, grad)
        return (-gB @ X.mH).sum_to_size(ctx.shapes[0]), gB.sum_to_size(ctx.shapes[1])


def _named_singular(op: str, A: Tensor, call: Any) -> Any:
    import numpy as np

    try:
        return call()
    except np.linalg.LinAlgError:
        flat = A.detach().reshape((-1, *A.shape[-2:]))
        which = next((i for i, m in enumerate(flat) if _is_singular(m)), 0)
        batch = f"(Batch element {which}): " if A.ndim > 2 else ""
        raise LinAlgError(f"{op}: {batch}The solver failed because the input matrix is singular.") from None


def _is_singular(A: Tensor) -> bool:
    import numpy as np

    try:
        on_arrays(np.linalg.inv, A)
    except np.linalg.LinAlgError:
        return True
    return False


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with A X = B, or X A = B without `left`.

    Shapes: A (*, n, n); B (*, n, k), or (*, k, n) without `left`, or vectors (*, n): B is taken as vectors
    when it has one dim, or one dim less than A and the batch's shape. Batches broadcast.

    Raises:
        LinAlgError: a singular matrix.
        ShapeError, DtypeError: no square matrices in single or double precision.
    """
    check_square("linalg.solve", A)
    vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    if vector:
        return solve(A, B.unsqueeze(-1)).squeeze(-1)
    if not left:
        check_matrices("linalg.solve", B)
        return solve(A.mT, B.mT).mT
    check_equations("linalg.solve", A, B)
    return _named_singular("linalg.solve", A, lambda: _Solve.apply(A, B))


class _SolveTriangular(Function):
    """X with A X = B for triangular A."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor, upper: Any, unit: Any) -> Tensor:
        X = on_arrays(lambda a, b: triangular_solution(a, b, not upper, unit), A, B)
        ctx.shapes, ctx.kind = (A.shape, B.shape), (upper, unit)
        ctx.save_for_backward(A, X)
        return X

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        A, X = ctx.saved_tensors
        upper, unit = ctx.kind
        gB = _SolveTriangular.apply(A.mH, grad, not upper, unit)
        gA = -gB @ X.mH
        gA = gA.triu(int(unit)) if upper else gA.tril(-int(unit))
        return gA.sum_to_size(ctx.shapes[0]), gB.sum_to_size(ctx.shapes[1]), None, None


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """X with A X = B, or X A = B without `left`, for triangular A.

    Shapes: A (*, n, n), B (*, n, k), or (*, k, n) without `left`; batches broadcast. Only one triangle of A
    is read, and with `unitriangular` its diagonal is taken as ones; a zero on it gives inf or nan.

    Raises:
        ShapeError, DtypeError: no square matrices in single or double precision.
    """
    check_square("linalg.solve_triangular", A)
    if not left:
        check_matrices("linalg.solve_triangular", B)
        return solve_triangular(A.mT, B.mT, upper=not upper, unitriangular=unitriangular).mT
    check_equations("linalg.solve_triangular", A, B)
    return _SolveTriangular.apply(A, B, upper, unitriangular)


def inv(A: Tensor) -> Tensor:
    """The inverses of square matrices (*, n, n).

    Raises:
        LinAlgError: a singular matrix.
        ShapeError, DtypeError: no square matrices in single or double precision.
    """
    check_square("linalg.inv", A)
    return _named_singular("linalg.inv", A, lambda: _Solve.apply(A, identity(A).expand(A.shape)))


def inv_ex(A: Tensor, *, check_errors: bool = False) -> Any:
    """As `inv`, with `info` (*) of int32 that is not 0 where a matrix is singular; its inverse then
    holds inf and nan."""
    check_square("linalg.inv_ex", A)
    if check_errors:
        return _InvEx(inv(A), A.new_zeros(A.shape[:-2], dtype=_C.int32))
    try:
        return _InvEx(inv(A), A.new_zeros(A.shape[:-2], dtype=_C.int32))
    except LinAlgError:
        info = on_arrays(lambda a: factors(a)[2], A)
    singular = (info != 0)[..., None, None]
    found = on_arrays(solution, A, identity(A))
    return _InvEx(_ops.where(singular, found, inv(A.where(~singular, identity(A)))), info)


def _signed_logarithm(a: Any) -> Any:
    import numpy as np

    return tuple(np.linalg.slogdet(a)) if np.isfinite(a).all() else log_determinant(a)


class _SLogDetFunction(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, Tensor]:
        sign, log = on_arrays(_signed_logarithm, A)
        ctx.save_for_backward(A, sign)
        if not A.is_complex():
            ctx.mark_non_differentiable(sign)
        return sign, log

    @staticmethod
    def backward(ctx: Any, g_sign: Any, grad: Tensor) -> Tensor:
        A, sign = ctx.saved_tensors
        if A.is_complex():  # log and the sign's angle are the parts of the logarithm of the determinant
            grad = _ops.complex(grad, (g_sign * sign.conj()).imag)
        return grad[..., None, None] * inv_ex(A).inverse.mH


def slogdet(A: Tensor) -> Any:
    """Sign (of absolute value 1 where complex) and logarithm of the absolute value of the determinants of
    (*, n, n), both of shape (*)."""
    check_square("linalg.slogdet", A)
    return _SLogDet(*_SLogDetFunction.apply(A))


class _Det(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        import numpy as np

        def value(a: Any) -> Any:
            if np.isfinite(a).all():
                return np.linalg.det(a)
            sign, log = log_determinant(a)
            return np.where(np.isnan(log), np.nan, sign * np.exp(log)).astype(a.dtype)

        ctx.save_for_backward(A)
        return on_arrays(value, A)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (A,) = ctx.saved_tensors
        return grad[..., None, None] * _cofactors(A)


def _cofactors(A: Tensor) -> Tensor:
    """The adjoint of the adjugate, conj(det(A)) A**-H, also of singular matrices: U and V turn it into that
    of a diagonal."""
    value = det(A)
    if bool((value != 0).all()):
        return value.conj()[..., None, None] * inv(A).mH
    U, S, Vh = svd(A)
    n = S.shape[-1]
    others = S.unsqueeze(-2).expand((*S.shape, n)).masked_fill(identity(A).bool(), 1.0).prod(-1)
    turns = (det(U) * det(Vh)).conj()
    return turns[..., None, None] * ((U * others.unsqueeze(-2)) @ Vh)


def det(A: Tensor) -> Tensor:
    """The determinants (*) of square matrices (*, n, n)."""
    check_square("linalg.det", A)
    return _Det.apply(A)


def _cutoff(values: Tensor, shape: Sequence[int], atol: Any, rtol: Any) -> Tensor:
    """Below it a singular value counts as 0."""
    from .. import finfo

    largest = values.amax(-1, keepdim=True) if values.shape[-1] else values.sum(-1, keepdim=True)
    absolute = 0.0 if atol is None else atol
    if rtol is None:
        positive = (atol > 0).any() if isinstance(atol, Tensor) else absolute > 0
        rtol = 0.0 if positive else finfo(values.dtype).eps * max(shape[-2:])
    absolute, rtol = (t.unsqueeze(-1) if isinstance(t, Tensor) and t.ndim else t for t in (absolute, rtol))
    relative = largest * rtol
    return relative.clamp(min=absolute) if not isinstance(absolute, Tensor) else relative.maximum(absolute)


class _PInv(Function):
    """Golub and Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems whose
    variables separate", equation 4.12."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, P: Tensor) -> Tensor:
        ctx.save_for_backward(A, P)
        return P.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        A, P = ctx.saved_tensors
        P = _PInv.apply(A, P)  # for the second derivative
        Ph, Gh = P.mH, grad.mH
        rows = Gh @ P @ Ph
        columns = Ph @ P @ Gh
        return rows - A @ (P @ rows) + columns - (columns @ P) @ A - Ph @ grad @ Ph, None


def pinv(
    A: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False, rcond: Any = None
) -> Tensor:
    """The pseudo-inverses (*, n, m) of matrices (*, m, n).

    Args:
        A: matrices.
        atol, rtol: singular values of at most max(atol, rtol * largest) count as 0; rtol is the dtype's
        epsilon
            times max(m, n) unless one of them is given. `rcond` is an older name of rtol.
        hermitian: A is Hermitian; only its lower triangle is read.
    """
    check_matrices("linalg.pinv", A)
    if A.numel() == 0:
        return A.mT.clone()
    if hermitian:
        check_square("linalg.pinv", A)
        S, U = eigh(A.detach())
        Vh = U.mH
    else:
        U, S, Vh = svd(A.detach(), full_matrices=False)
    size = S.abs()
    kept = _cutoff(size, A.shape, atol, rtol if rcond is None else rcond) < size
    inverse = _ops.where(kept, 1 / S, S * 0)
    return _PInv.apply(A, (Vh.mH * inverse.unsqueeze(-2)) @ U.mH)


def matrix_rank(
    A: Tensor, tol: Any = None, *, atol: Any = None, rtol: Any = None, hermitian: bool = False
) -> Tensor:
    """The number of singular values above the cutoff that `pinv` describes, as int64 (*)."""
    check_matrices("linalg.matrix_rank", A)
    if A.numel() == 0:
        return A.new_zeros(A.shape[:-2], dtype=_C.int64)
    values = eigvalsh(A).abs() if hermitian else svdvals(A)
    values = values.detach()
    if tol is not None:
        return (values > (tol.unsqueeze(-1) if isinstance(tol, Tensor) and tol.ndim else tol)).sum(-1)
    return (values > _cutoff(values, A.shape, atol, rtol)).sum(-1)


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """The X of least norm among those that make A X - B smallest.

    Shapes: A (*, m, n), B (*, m, k) or (*, m); solution (*, n, k) or (*, n). What LAPACK's routine `driver`,
    "gelsy" unless given, does not tell is empty: residuals (*, k), the squared norms, only with "gels",
    "gelsd" and "gelss", where m > n and A has full rank; rank (*) not with "gels"; singular_values
    (*, min(m, n)) only with "gelsd" and "gelss".

    Raises:
        LinAlgError: with "gels", a matrix that does not have full rank.
        RuntimeError: another driver.
    """
    check_matrices("linalg.lstsq", A)
    driver = driver or "gelsy"
    if driver not in ("gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(
            f"linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got {driver!r}"
        )
    vector = B.ndim == A.ndim - 1
    right = B.unsqueeze(-1) if vector else B
    check_equations("linalg.lstsq", A, right)
    values = svdvals(A.detach())
    rank = (values > _cutoff(values, A.shape, None, rcond)).sum(-1)
    full = bool((rank == min(A.shape[-2:])).all())
    if driver == "gels" and not (full or values.isnan().any()):
        raise LinAlgError(
            "linalg.lstsq: The least squares solution could not be computed because the input matrix does "
            "not have full rank"
        )
    solution = pinv(A, rtol=rcond) @ right
    residuals = empty = A.real.new_empty(0)
    if driver != "gelsy" and full and A.shape[-2] > A.shape[-1]:
        residuals = (A @ solution - right).abs().square().sum(-2)
    return _LstSq(
        solution.squeeze(-1) if vector else solution,
        residuals,
        rank if driver != "gels" else rank.new_empty(0),
        values if driver in ("gelsd", "gelss") else empty,
    )


def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition numbers (*): ratio of the largest and the smallest singular value, or norm of A times
    norm of the inverse for the orders "fro", "nuc", inf, -inf, 1, -1; p=-2 is the ratio's inverse. inf for
    singular matrices."""
    from .norms import matrix_norm

    check_matrices("linalg.cond", A)
    if A.numel() == 0:
        return A.real.new_zeros(A.shape[:-2])
    if p in (None, 2, -2):
        values = svdvals(A)
        return values[..., 0] / values[..., -1] if p != -2 else values[..., -1] / values[..., 0]
    check_square("linalg.cond", A)
    inverse, info = inv_ex(A)
    found = matrix_norm(A, p) * matrix_norm(inverse, p)
    return found.masked_fill((info != 0) | found.isnan(), math.inf)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """A times itself n times (*, m, m), by squaring; of the inverse for negative n."""
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise _C.ShapeError(
            f"linalg.matrix_power: A must be batches of square matrices, got shape {tuple(A.shape)}"
        )
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 0:
        return identity(A).expand(A.shape).clone()
    result: Tensor | None = None
    while n:
        if n & 1:
            result = A if result is None else result @ A
        n >>= 1
        if n:
            A = A @ A
    return result.clone() if result is A else result  # type: ignore[union-attr,return-value]


# Of the Padé approximant of degree 13: Higham, "The scaling and squaring method for the matrix exponential
# revisited", table 10.4 and algorithm 10.20.
_PADE = [math.factorial(26 - k) / (math.factorial(k) * math.factorial(13 - k)) for k in range(14)]
_PADE_RADIUS = 5.371920351148152


def matrix_exp(A: Tensor) -> Tensor:
    """The exponentials of square matrices (*, n, n), by scaling and squaring."""
    check_square("linalg.matrix_exp", A)
    if A.numel() == 0:
        return A.clone()
    flat = A.reshape(-1, *A.shape[-2:])
    sizes = (flat.detach().abs().sum(-2).amax(-1) / _PADE_RADIUS).double().log2().ceil()
    times = sizes.where((sizes > 0) & sizes.isfinite(), 0.0).long()
    # Each matrix is scaled by its own norm, those of one scale together.
    groups = [(scale, (times == scale).nonzero().flatten()) for scale in set(times.tolist())]
    if len(groups) == 1:
        return _pade(A, groups[0][0])
    found = _ops.cat([_pade(flat[which], scale) for scale, which in groups])
    return found[_ops.cat([which for _, which in groups]).argsort()].reshape(A.shape)


def _pade(A: Tensor, times: int) -> Tensor:
    """The exponentials, from the approximant of A / 2**times."""
    b = [value / _PADE[13] for value in _PADE]
    scaled = A / 2**times
    one = identity(A)
    A2 = scaled @ scaled
    A4 = A2 @ A2
    A6 = A4 @ A2
    odd = A6 @ (b[13] * A6 + b[11] * A4 + b[9] * A2) + b[7] * A6 + b[5] * A4 + b[3] * A2 + b[1] * one
    even = A6 @ (b[12] * A6 + b[10] * A4 + b[8] * A2) + b[6] * A6 + b[4] * A4 + b[2] * A2 + b[0] * one
    odd = scaled @ odd
    result = solve(even - odd, even + odd)
    for _ in range(times):
        result = result @ result
    return result


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of `A` as a map between its last dims and its first `ind`."""
    if ind <= 0:
        raise RuntimeError("linalg.tensorinv: Expected a strictly positive integer for 'ind'")
    rows, columns = A.shape[:ind], A.shape[ind:]
    if math.prod(rows) != math.prod(columns):
        raise _C.ShapeError(
            f"linalg.tensorinv: Expected self to satisfy the requirement prod(self.shape[ind:]) == "
            f"prod(self.shape[:ind]), but got {math.prod(columns)} != {math.prod(rows)}"
        )
    return inv(A.reshape(math.prod(rows), -1)).reshape((*columns, *rows))


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X with tensordot(A, X, X.ndim) = B; `dims` of A are moved to its end first."""
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(-len(dims), 0)))
    shape = A.shape[B.ndim :]
    if math.prod(shape) != B.numel():
        raise _C.ShapeError(
            f"linalg.tensorsolve: A of shape {tuple(A.shape)} does not fit B of shape {tuple(B.shape)}"
        )
    return solve(A.reshape(-1, math.prod(shape)), B.reshape(-1)).reshape(shape)
