"""Extreme eigenvalues of large symmetric matrices, by products with the matrix alone: torch.lobpcg.

Knyazev, Toward the Optimal Preconditioned Eigensolver, 2001: in each step the smallest (largest) Ritz pairs
of the space of the approximations X [m, k], their preconditioned residuals and the last step's directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from warptape import core as wt
from warptape.core.namespaces import linalg

from ..autograd import Function
from ..core import Tensor


class _Worker:
    """What a tracker is called with: the state after a step, under PyTorch's names."""

    def __init__(self, k: int) -> None:
        self.ivars = {"istep": 0, "converged_count": 0, "k": k}
        self.fvars: dict[str, float] = {}
        self.bvars = {"force_stop": False}
        self.tvars: dict[str, Tensor] = {}
        self.E = self.X = wt.empty(0)


def _product(A: Any, x: Tensor) -> Tensor:
    return x if A is None else A @ x


def _orthonormal(S: Tensor, B: Any, keep: int) -> Tensor:
    """A basis of the span of S, orthonormal by B; what depends on others is left out, but not the first."""
    S = S / S.norm(dim=-2, keepdim=True).clamp_min(wt.finfo(S.dtype).tiny)
    for _ in range(2):  # once more for what rounding leaves
        values, vectors = linalg.eigh(S.mT @ _product(B, S))
        good = values > values[-1] * S.shape[-2] * wt.finfo(S.dtype).eps
        if int(good.sum()) < keep:
            raise RuntimeError("lobpcg: the approximations are linearly dependent; give another X")
        S = S @ (vectors[:, good] / values[good].sqrt())
    return S


def _solve(
    A: Any,
    B: Any,
    X: Tensor,
    iK: Tensor | None,
    niter: int,
    tol: float,
    largest: bool,
    tracker: Callable[[Any], Any] | None,
) -> tuple[Tensor, Tensor]:
    k, worker = X.shape[-1], _Worker(X.shape[-1])

    def ritz(S: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = linalg.eigh(S.mT @ _product(A, S))
        if largest:
            values, vectors = values.flip(0), vectors.flip(1)
        return values[:k], vectors[:, :k]

    S = _orthonormal(X, B, k)
    E, C = ritz(S)
    X, P = S @ C, None
    norms = [_norm_of(A, X), 1.0 if B is None else _norm_of(B, X)]
    for step in range(niter + 1 if niter >= 0 else 2**31):
        R = _product(A, X) - _product(B, X) * E
        error = R.norm(dim=0) / (X.norm(dim=0) * (norms[0] + E.abs() * norms[1]))
        worker.ivars |= {"istep": step, "converged_count": int((error < tol).cummin(0)[0].sum())}
        worker.tvars["rerr"], worker.E, worker.X = error, E, X
        if tracker is not None:
            tracker(worker)
        if worker.ivars["converged_count"] >= k or worker.bvars["force_stop"] or step == niter:
            break
        parts = [X, R if iK is None else iK @ R, *([] if P is None else [P])]
        S = _orthonormal(wt.cat(parts, -1), B, k)
        E, C = ritz(S)
        following = S @ C
        # The part of the step that leaves the span of X.
        P = following - X @ (X.mT @ _product(B, following))
        X = following
    return E, X


def _norm_of(A: Any, X: Tensor) -> float:
    probe = wt.randn_like(X)
    return max(float((A @ probe).norm() / probe.norm()), 1e-30)


class _Gradient(Function):
    """The eigenpairs as a function of a dense symmetric matrix."""

    @staticmethod
    def forward(ctx: Any, A: Any, E: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(A, E, X)
        return E.clone(), X.clone()

    @staticmethod
    def backward(ctx: Any, gE: Tensor, gX: Tensor) -> tuple[Tensor, None, None]:
        A, E, X = ctx.saved_tensors
        values, vectors = linalg.eigh((A + A.mT) / 2)
        gap = E[None, :] - values[:, None]
        # Each column's own pair, whose direction does not turn; in both bases by its overlap.
        own = (vectors.mT @ X).abs().argmax(0)
        gap[own, wt.arange(E.shape[0])] = float("inf")
        gradient = (X * gE) @ X.mT + vectors @ ((vectors.mT @ gX) / gap) @ X.mT
        return (gradient + gradient.mT) / 2, None, None


def _over_batch(f: Callable[..., Any], A: Any, *more: Tensor | None) -> tuple[Tensor, Tensor]:
    """f for each matrix [m, m] of A and what goes with it; its two results, stacked as A's batch."""
    if A.dim() == 2:
        return f(A, *more)
    batch = A.shape[:-2]

    def single(t: Tensor | None) -> Any:
        if t is None:
            return [None] * math.prod(batch)
        return t.expand(*batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:])

    results = [f(*arguments) for arguments in zip(*map(single, (A, *more)), strict=True)]
    first, second = (wt.stack(list(part)) for part in zip(*results, strict=True))
    return first.reshape(*batch, *first.shape[1:]), second.reshape(*batch, *second.shape[1:])


def lobpcg(
    A: Any,
    k: int | None = None,
    B: Any = None,
    X: Tensor | None = None,
    n: int | None = None,
    iK: Tensor | None = None,
    niter: int | None = None,
    tol: float | None = None,
    largest: bool | None = None,
    method: str | None = None,
    tracker: Callable[[Any], Any] | None = None,
    ortho_iparams: dict[str, int] | None = None,
    ortho_fparams: dict[str, float] | None = None,
    ortho_bparams: dict[str, bool] | None = None,
) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) eigenvalues [.., k] and eigenvectors [.., m, k] of A x = lambda B x.

    A [.., m, m] is symmetric, B positive definite (the identity without it); both may be sparse. The pairs
    have gradients with respect to a dense A without B.

    Args:
        A: the matrix, of which only products are taken.
        k: how many pairs; the columns of X, or 1.
        B: the other matrix.
        X: where the search starts, [.., m, n]; random numbers without it.
        n: columns of a random start, at least k.
        iK: a preconditioner, near the inverse of A.
        niter: at most so many steps; -1 until all have converged. 1000 by default.
        tol: bound of the relative residuals; the root of the dtype's epsilon by default.
        largest: whether the largest pairs (default) or the smallest.
        method: "ortho" or "basic": one algorithm here.
        tracker: called with the state after each step.
        ortho_iparams, ortho_fparams, ortho_bparams: accepted, without effect.

    Raises:
        ValueError: fewer than 3 k rows; another method; a gradient for a sparse A, or with B.

    >>> E, X = torch.lobpcg(torch.diag(torch.arange(1.0, 13.0)), k=2)
    >>> E.round()
    tensor([12., 11.])
    """
    if method not in (None, "ortho", "basic"):
        raise ValueError(f"lobpcg: expected method 'ortho' or 'basic', got {method!r}")
    if A.dim() < 2 or A.shape[-1] != A.shape[-2]:
        raise RuntimeError(f"lobpcg: expected square matrices A, got {list(A.shape)}")
    wants = wt.is_grad_enabled() and (A.requires_grad or (B is not None and B.requires_grad))
    if wants and (A.is_sparse or B is not None):
        raise ValueError("lobpcg: gradients are for a dense A without B; detach A and B")
    k = k if k is not None else 1 if X is None else X.shape[-1]
    m = A.shape[-1]
    if m < 3 * k:
        raise ValueError(
            f"LOBPCG algorithm is not applicable when the number of A rows (={m}) is smaller than 3 x the "
            f"number of requested eigenpairs (={k})"
        )
    dtype = A.dtype if A.dtype.is_floating_point else wt.get_default_dtype()
    count = max(n or k, k)
    if X is None:
        X = wt.randn(*A.shape[:-2], m, count, dtype=dtype, device=A.device)
    tol = wt.finfo(dtype).eps ** 0.5 if tol is None else tol
    steps, most = 1000 if niter is None else niter, largest is None or largest

    def solve(A: Any, B: Any, X: Tensor, iK: Tensor | None) -> tuple[Tensor, Tensor]:
        return _solve(A, B, X, iK, steps, tol, most, tracker)

    with wt.no_grad():
        E, V = _over_batch(solve, A, B, X, iK)
        E, V = E[..., :k], V[..., :k]
    if not wants:
        return E, V
    return _over_batch(lambda a, e, v: _Gradient.apply(a, e[0], v), A, E[..., None, :], V)
