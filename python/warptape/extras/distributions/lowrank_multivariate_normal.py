"""Normal vectors with a covariance of low rank plus a diagonal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt
from warptape.core.namespaces import linalg

from . import constraints
from .distribution import Distribution
from .utils import _standard_normal, lazy_property

__all__ = ["LowRankMultivariateNormal"]


class LowRankMultivariateNormal(Distribution):
    """Normal vectors with covariance W W^T + diag(D): by Woodbury's identity, K inversions of R x R.

    Args:
        loc: the mean, of shape (*, K).
        cov_factor: W, of shape (*, K, R).
        cov_diag: D, of shape (*, K).
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector
    has_rsample = True
    mean = mode = property(attrgetter("loc"))

    def __init__(
        self, loc: wt.Tensor, cov_factor: wt.Tensor, cov_diag: wt.Tensor, validate_args: bool | None = None
    ) -> None:
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        if cov_factor.dim() < 2:
            raise ValueError("cov_factor must be at least two-dimensional, with optional leading batch dims")
        size = loc.shape[-1:]
        if cov_factor.shape[-2:-1] != size or cov_diag.shape[-1:] != size:
            raise ValueError(f"cov_factor and cov_diag must be batches of {size[0]} rows and elements")
        batch = wt.broadcast_shapes(loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1])
        self.loc, self.cov_diag = loc.expand((*batch, -1)), cov_diag.expand((*batch, -1))
        self.cov_factor = self._unbroadcasted_cov_factor = cov_factor.expand((*batch, -1, -1))
        self._unbroadcasted_cov_diag = self.cov_diag
        super().__init__(batch, size, validate_args=validate_args)
        # The capacitance matrix I + W^T D^-1 W, of R x R.
        weighted = cov_factor.mT / cov_diag.unsqueeze(-2)
        eye = wt.eye(cov_factor.shape[-1], dtype=loc.dtype, device=loc.device)
        root = linalg.cholesky(weighted @ cov_factor + eye)
        self._capacitance_tril = root.expand((*batch, -1, -1))

    @lazy_property
    def variance(self) -> Any:  # type: ignore[override]
        return self.cov_factor.square().sum(-1) + self.cov_diag

    @lazy_property
    def covariance_matrix(self) -> Any:
        return self.cov_factor @ self.cov_factor.mT + self.cov_diag.diag_embed()

    @lazy_property
    def scale_tril(self) -> Any:
        return linalg.cholesky(self.covariance_matrix)

    @lazy_property
    def precision_matrix(self) -> Any:
        weighted = self.cov_factor.mT / self.cov_diag.unsqueeze(-2)
        half = linalg.solve_triangular(self._capacitance_tril, weighted, upper=False)
        return self.cov_diag.reciprocal().diag_embed() - half.mT @ half

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        like: dict[str, Any] = {"dtype": self.loc.dtype, "device": self.loc.device}
        ranks = _standard_normal((*shape[:-1], self.cov_factor.shape[-1]), **like)
        own = _standard_normal(shape, **like)
        along = (self.cov_factor @ ranks.unsqueeze(-1)).squeeze(-1)
        return self.loc + along + self.cov_diag.sqrt() * own

    def _mahalanobis(self, x: wt.Tensor) -> Any:
        """x^T (W W^T + D)^-1 x."""
        weighted = self.cov_factor.mT / self.cov_diag.unsqueeze(-2)
        inside = (weighted @ x.unsqueeze(-1)).squeeze(-1)
        half = linalg.solve_triangular(self._capacitance_tril, inside.unsqueeze(-1), upper=False)
        return (x.square() / self.cov_diag).sum(-1) - half.square().sum((-2, -1))

    def _log_det(self) -> Any:
        root = self._capacitance_tril.diagonal(dim1=-2, dim2=-1)
        return 2 * root.log().sum(-1) + self.cov_diag.log().sum(-1)

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        size = self._event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (size + self._log_det() + self._mahalanobis(value - self.loc))

    def entropy(self) -> Any:
        return 0.5 * (self._event_shape[0] * (1.0 + math.log(2 * math.pi)) + self._log_det())
