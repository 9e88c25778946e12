"""Factors of matrices, differentiable any number of times.

The derivatives are those of Giles, "An extended collection of matrix derivative results for forward and
reverse mode algorithmic differentiation", section 3 (eigenvalues, singular values), Murray, "Differentiation
of the Cholesky decomposition", section 3, and Walter and Lehmann, "Algorithmic differentiation of linear
algebra functions", section 4 (QR), with adjoints for transposes where numbers are complex. Those of
eigenvectors and singular vectors exist where no two values are equal, and are refused to losses that depend
on the phases of complex ones, which are arbitrary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _C
from .._tensor import Tensor
from ..autograd import Function
from ._elimination import cholesky_factor
from ._lapack import LinAlgError, check_matrices, check_square, identity, named, on_arrays, on_finite

__all__ = ["cholesky", "cholesky_ex", "eig", "eigh", "eigvals", "eigvalsh", "qr", "svd", "svdvals"]

_Eig = named("linalg_eig", "eigenvalues", "eigenvectors")
_Eigh = named("linalg_eigh", "eigenvalues", "eigenvectors")
_SVD = named("linalg_svd", "U", "S", "Vh")
_QR = named("linalg_qr", "Q", "R")
_CholeskyEx = named("linalg_cholesky_ex", "L", "info")


def _narrow(a: Tensor, rows: int | None, columns: int | None) -> Tensor:
    a = a if rows is None else a.narrow(-2, 0, rows)
    return a if columns is None else a.narrow(-1, 0, columns)


def _halved(x: Tensor) -> Tensor:
    """The lower triangle, with half of the diagonal."""
    return x.tril() - (x.diagonal(dim1=-2, dim2=-1) / 2).diag_embed()


class _Cholesky(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, Tensor]:
        import numpy as np

        def factor(a: Any) -> Any:
            try:
                if np.isfinite(a).all():
                    return np.linalg.cholesky(a), np.zeros(a.shape[:-2], np.int32)
            except np.linalg.LinAlgError:
                pass
            pairs = [cholesky_factor(m) for m in a.reshape(-1, *a.shape[-2:])]
            found = np.array([f for f, _ in pairs], a.dtype).reshape(a.shape)
            return found, np.array([i for _, i in pairs], np.int32).reshape(a.shape[:-2])

        L, info = on_arrays(factor, A)
        ctx.save_for_backward(L)
        ctx.mark_non_differentiable(info)
        return L, info

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
        from .solvers import solve_triangular

        (L,) = ctx.saved_tensors
        inner = _halved(L.mH @ grad)
        # L**-T inner L**-1, from both sides by triangular systems.
        left = solve_triangular(L.mH, inner, upper=True)
        found = solve_triangular(L, left, upper=False, left=False)
        return (found + found.mH) / 2


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    """As `cholesky`, with the order of the first leading minor that is not positive as `info`, 0 where all
    are.

    Shapes: A (*, n, n), L (*, n, n), info (*) of int32. Where info is not 0, L is factored
    until there.

    Raises:
        LinAlgError: with `check_errors`, for a matrix that is not positive definite.
    """
    check_square("linalg.cholesky", A)
    L, info = _Cholesky.apply(A.mH if upper else A)  # only the lower triangle is read
    if check_errors and info.any():
        which = int(info.flatten().nonzero()[0]) if info.ndim else 0
        batch = f"(Batch element {which}): " if info.ndim else ""
        raise LinAlgError(
            f"linalg.cholesky: {batch}The factorization could not be completed because the input is not "
            f"positive-definite (the leading minor of order {int(info.flatten()[which])} is not "
            "positive-definite)."
        )
    return _CholeskyEx(L.mH if upper else L, info)


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower factor L with L L^H = A of Hermitian positive definite matrices (*, n, n); or its adjoint.

    Only one triangle of A is read.

    Raises:
        LinAlgError: a matrix that is not positive definite.
        ShapeError, DtypeError: no square matrices in single or double precision.
    """
    return cholesky_ex(A, upper=upper, check_errors=True).L


class _QRReduced(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, Tensor]:
        import numpy as np

        Q, R = on_arrays(lambda a: tuple(np.linalg.qr(a)), A)
        ctx.save_for_backward(A, Q, R)
        return Q, R

    @staticmethod
    def backward(ctx: Any, gQ: Tensor, gR: Tensor) -> Tensor:
        A, Q, R = ctx.saved_tensors
        rows, columns = A.shape[-2:]
        if rows >= columns:
            return _qr_slope(Q, R, gQ, gR)
        # A = [X | Y] with X square: Y = Q R2 depends on X through Q.
        Y, U = A[..., rows:], R[..., :rows]
        gU, gV = gR[..., :rows], gR[..., rows:]
        from .. import cat

        return cat([_qr_slope(Q, U, gQ + Y @ gV.mH, gU), Q @ gV], -1)


def _qr_slope(Q: Tensor, R: Tensor, gQ: Tensor, gR: Tensor) -> Tensor:
    from .solvers import solve_triangular

    half = _halved(R @ gR.mH - gQ.mH @ Q)
    return solve_triangular(R.mH, gQ + Q @ (half + half.mH), upper=False, left=False)


def qr(A: Tensor, mode: str = "reduced") -> Any:
    """Q with orthonormal columns and upper triangular R of real diagonal, with Q R = A.

    Shapes: A (*, m, n) gives Q (*, m, k) and R (*, k, n), k = min(m, n), or m with mode "complete". Mode "r"
    leaves Q empty, and has no derivative; nor has "complete" for m > n.

    Raises:
        ValueError: another mode.
        ShapeError, DtypeError: no matrices in single or double precision.
    """
    check_matrices("linalg.qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or "
            "'complete'"
        )
    if mode == "reduced" or (mode == "complete" and A.shape[-2] <= A.shape[-1]):
        return _QR(*_QRReduced.apply(A))
    if A.requires_grad and _C.is_grad_enabled():
        raise RuntimeError(
            f"linalg.qr: the derivative with mode='{mode}' is not defined for these matrices; use 'reduced'"
        )
    import numpy as np

    if mode == "complete":
        return _QR(*on_arrays(lambda a: tuple(np.linalg.qr(a, "complete")), A))
    return _QR(A.new_empty(0), on_arrays(lambda a: np.linalg.qr(a, "r"), A))


def _inverse_gaps(values: Tensor) -> Tensor:
    """1 / (v_j - v_i) at [i, j], and 0 on the diagonal."""
    gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
    diagonal = identity(gaps)
    return (1 - diagonal) / (gaps + diagonal)


def _check_phases(what: str, *inner: Tensor) -> None:
    """Refuses gradients by which a loss depends on the vectors' phases: the diagonals of vectors**H gradient
    then have imaginary parts that do not cancel."""
    if not inner[0].is_complex():
        return
    turned: Any = sum(m.detach().diagonal(dim1=-2, dim2=-1).imag for m in inner)
    if not bool((turned.abs() <= 1e-2).all()):
        raise RuntimeError(
            f"{what} in the complex case are specified up to multiplication by e^{{i phi}}. The specified "
            "loss function depends on this quantity, so it is ill-defined."
        )


class _EighFunction(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor, UPLO: Any) -> tuple[Tensor, Tensor]:
        import numpy as np

        def factor(a: Any) -> Any:
            read = np.tril(a) if UPLO.upper() == "L" else np.triu(a)
            return on_finite("linalg.eigh", lambda a: tuple(np.linalg.eigh(a, UPLO)), read, infinite=False)

        values, vectors = on_arrays(factor, A)
        ctx.save_for_backward(values, vectors)
        ctx.set_materialize_grads(False)
        return values, vectors

    @staticmethod
    def backward(ctx: Any, g_values: Any, g_vectors: Any) -> tuple[Tensor | None, None]:
        values, V = ctx.saved_tensors
        if g_values is None and g_vectors is None:
            return None, None
        left: Any = 0.0 if g_values is None else V * g_values.unsqueeze(-2)
        if g_vectors is not None:
            m = V.mH @ g_vectors
            _check_phases("linalg_eigh_backward: The eigenvectors", m)
            left = left + V @ (m * _inverse_gaps(values))
        found = left @ V.mH
        return (found + found.mH) / 2, None


def eigh(A: Tensor, UPLO: str = "L") -> Any:
    """Eigenvalues (*, n), ascending, and eigenvectors (*, n, n), in columns, of Hermitian matrices (*, n, n).

    Only the lower triangle is read, or the upper with UPLO "U". The derivative is a Hermitian matrix.
    Eigenvectors are defined up to their sign, complex ones up to their phase.

    Raises:
        RuntimeError: another UPLO; in the backward pass, a loss that depends on the phases.
        LinAlgError: no convergence.
        ShapeError, DtypeError: no square matrices in single or double precision.
    """
    check_square("linalg.eigh", A)
    if UPLO.upper() not in ("L", "U"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    return _Eigh(*_named_errors("linalg.eigh", lambda: _EighFunction.apply(A, UPLO)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of `eigh`, with a derivative also where some are equal."""
    return eigh(A, UPLO).eigenvalues


class _EigFunction(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, Tensor]:
        import numpy as np

        def factor(a: Any) -> Any:  # NumPy gives real numbers where all of them are
            return tuple(each.astype(np.result_type(a, np.complex64)) for each in np.linalg.eig(a))

        values, vectors = on_arrays(lambda a: on_finite("linalg.eig", factor, a, infinite=False), A)
        ctx.real = not A.is_complex()
        ctx.save_for_backward(values, vectors)
        ctx.set_materialize_grads(False)
        return values, vectors

    @staticmethod
    def backward(ctx: Any, g_values: Any, g_vectors: Any) -> Tensor | None:
        from .solvers import solve

        values, V = ctx.saved_tensors
        inner = None if g_values is None else g_values.diag_embed()
        if g_vectors is not None:
            m = V.mH @ g_vectors
            _check_phases("linalg_eig_backward: The eigenvectors", m)
            kept = m.diagonal(dim1=-2, dim2=-1).real.unsqueeze(-2)  # the columns stay of norm 1
            turned = (m - (V.mH @ V) * kept) * _inverse_gaps(values).conj()
            inner = turned if inner is None else inner + turned
        if inner is None:
            return None
        found = solve(V.mH, inner @ V.mH)
        return found.real if ctx.real else found


def eig(A: Tensor) -> Any:
    """Eigenvalues (*, n), in no order, and eigenvectors (*, n, n), in columns of norm 1, of square matrices
    (*, n, n): complex numbers, also of real matrices.

    Eigenvectors are defined up to their phase. The derivatives exist where the eigenvectors are independent,
    those of eigenvectors where no two eigenvalues are equal.

    Raises:
        LinAlgError: inf or nan in the matrix; in the backward pass, dependent eigenvectors.
        RuntimeError: in the backward pass, a loss that depends on the phases.
        ShapeError, DtypeError: no square matrices in single or double precision.
    """
    check_square("linalg.eig", A)
    return _Eig(*_named_errors("linalg.eig", lambda: _EigFunction.apply(A)))


def eigvals(A: Tensor) -> Tensor:
    """The eigenvalues of `eig`."""
    check_square("linalg.eigvals", A)
    if A.requires_grad and _C.is_grad_enabled():
        return eig(A).eigenvalues
    import numpy as np

    def values(a: Any) -> Any:
        dtype = np.result_type(a, np.complex64)
        return on_finite("linalg.eigvals", lambda a: np.linalg.eigvals(a).astype(dtype), a)

    return _named_errors("linalg.eigvals", lambda: on_arrays(values, A))


def _svd(a: Any, full_matrices: bool) -> Any:
    import numpy as np

    return on_finite("linalg.svd", lambda a: tuple(np.linalg.svd(a, full_matrices)), a)


class _SVDReduced(Function):
    @staticmethod
    def forward(ctx: Any, A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        U, S, Vh = on_arrays(lambda a: _svd(a, False), A)
        ctx.save_for_backward(U, S, Vh)
        ctx.set_materialize_grads(False)
        return U, S, Vh

    @staticmethod
    def backward(ctx: Any, gU: Any, gS: Any, gVh: Any) -> Tensor | None:
        U, S, Vh = ctx.saved_tensors
        if gU is None and gVh is None:
            return None if gS is None else (U * gS.unsqueeze(-2)) @ Vh
        gU, gVh = (t.new_zeros(t.shape) if g is None else g for t, g in ((U, gU), (Vh, gVh)))
        mU, mV = U.mH @ gU, Vh @ gVh.mH
        _check_phases("svd_backward: The singular vectors", mU, mV)
        squares = _inverse_gaps(S.square())
        columns, rows = S.unsqueeze(-2), S.unsqueeze(-1)
        inner = ((mU - mU.mH) * squares) * columns + rows * ((mV - mV.mH) * squares)
        if gS is not None:
            inner = inner + gS.diag_embed()
        if U.is_complex():  # U's and V's phases turn by half of the difference that the diagonal makes each
            turned = (mU - mV).diagonal(dim1=-2, dim2=-1).imag / (2 * S)
            inner = inner + _C._functions.complex(turned * 0, turned).diag_embed()
        outer = ((gU - U @ mU) / columns) @ Vh + (U / columns) @ (gVh - mV.mH @ Vh)
        return U @ inner @ Vh + outer


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> Any:
    """U, singular values S, descending, and Vh with U diag(S) Vh = A.

    Shapes: A (*, m, n) gives S (*, k), k = min(m, n), and U (*, m, m), Vh (*, n, n), or (*, m, k) and
    (*, k, n) without `full_matrices`. `driver` is accepted for CUDA's sake. Pairs of singular vectors are
    defined up to their sign, complex ones up to a phase; the derivative takes those of
    `full_matrices=False` only.

    Raises:
        LinAlgError: no convergence.
        RuntimeError: in the backward pass, a loss that depends on the phases.
        ShapeError, DtypeError: no matrices in single or double precision.
    """
    check_matrices("linalg.svd", A)
    U, S, Vh = _named_errors("linalg.svd", lambda: _SVDReduced.apply(A))
    m, n = A.shape[-2:]
    if full_matrices and m != n:
        if A.requires_grad and _C.is_grad_enabled():
            raise RuntimeError(
                "svd_backward: The singular vectors in the SVD decomposition are only differentiable with "
                "full_matrices=False"
            )
        U, S, Vh = on_arrays(lambda a: _svd(a, True), A)
    return _SVD(U, S, Vh)


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values of `svd`, with a derivative also where some are equal."""
    return svd(A, full_matrices=False, driver=driver).S


def _named_errors(op: str, call: Callable[[], Any]) -> Any:
    import numpy as np

    try:
        return call()
    except np.linalg.LinAlgError as error:
        raise LinAlgError(f"{op}: {error}; the matrix holds inf or nan, or is too ill-conditioned") from None
