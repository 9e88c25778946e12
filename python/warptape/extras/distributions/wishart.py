"""The Wishart distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from warptape import core as wt
from warptape.core.namespaces import linalg

from . import constraints
from .chi2 import Chi2
from .distribution import ExponentialFamily
from .multivariate_normal import given_matrix, scale_factor
from .utils import lazy_property


class Wishart(ExponentialFamily):
    """Positive definite matrices of shape (p, p): sums of outer products of `df` normal vectors.

    Samples are made by Bartlett's decomposition: Smith and Hocking, "Algorithm AS 53: Wishart variate
    generator", 1972. PyTorch draws again whatever its check takes for singular, which is most samples, and
    with a warning: from the same seed its numbers are others.

    Args:
        df: degrees of freedom, more than p - 1.
        covariance_matrix: positive definite, of shape (*, p, p).
        precision_matrix: its inverse.
        scale_tril: its lower Cholesky factor, which is what is computed with.
    """

    arg_constraints: Any = {}
    support = constraints.positive_definite
    has_rsample = True

    def __init__(
        self,
        df: wt.Tensor | float,
        covariance_matrix: wt.Tensor | None = None,
        precision_matrix: wt.Tensor | None = None,
        scale_tril: wt.Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, matrix = given_matrix(covariance_matrix, precision_matrix, scale_tril)
        df = wt.as_tensor(df, dtype=matrix.dtype, device=matrix.device)
        batch = wt.broadcast_shapes(matrix.shape[:-2], df.shape)
        size = matrix.shape[-1]
        if df.le(size - 1).any():
            raise ValueError(f"Value of df={df} expected to be greater than ndim - 1 = {size - 1}.")
        self.df = df.expand(batch)
        self.arg_constraints = {
            "covariance_matrix": constraints.positive_definite,
            "precision_matrix": constraints.positive_definite,
            "scale_tril": constraints.lower_cholesky,
            "df": constraints.greater_than(size - 1),
        }
        setattr(self, name, matrix.expand((*batch, -1, -1)))
        super().__init__(batch, matrix.shape[-2:], validate_args=validate_args)
        self._scale_tril = scale_factor(name, matrix).expand((*batch, -1, -1))

    @lazy_property
    def scale_tril(self) -> Any:
        return self._scale_tril

    @lazy_property
    def covariance_matrix(self) -> Any:
        return self._scale_tril @ self._scale_tril.mT

    @lazy_property
    def precision_matrix(self) -> Any:
        return wt.cholesky_inverse(self._scale_tril)

    @property
    def mean(self) -> Any:
        return self.df[..., None, None] * self.covariance_matrix

    @property
    def mode(self) -> Any:
        factor = self.df - self._event_shape[0] - 1
        return factor.where(factor > 0, math.nan)[..., None, None] * self.covariance_matrix

    @property
    def variance(self) -> Any:
        matrix = self.covariance_matrix
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
        return self.df[..., None, None] * (matrix.square() + diagonal[..., None] * diagonal[..., None, :])

    def _bartlett_sampling(self, sample_shape: Sequence[int] = ()) -> Any:
        size = self._event_shape[0]
        steps = wt.arange(size, dtype=self.df.dtype, device=self.df.device)
        diagonal = Chi2(self.df[..., None] - steps, validate_args=False).rsample(sample_shape).sqrt()
        noise = wt.randn((*diagonal.shape, size), dtype=diagonal.dtype, device=diagonal.device)
        factor = self._scale_tril @ (noise.tril(-1) + diagonal.diag_embed())
        return factor @ factor.mT

    def rsample(self, sample_shape: Sequence[int] = (), max_try_correction: int | None = None) -> Any:
        return self._bartlett_sampling(sample_shape)

    def _half_log_det(self) -> Any:
        return self._scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def _log_gamma(self) -> Any:
        return wt.mvlgamma(self.df / 2, self._event_shape[0])

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        size, half = self._event_shape[0], self._half_log_det()
        whitened = wt.cholesky_solve(value, self._scale_tril)
        return (
            (self.df - size - 1) / 2 * linalg.slogdet(value).logabsdet
            - whitened.diagonal(dim1=-2, dim2=-1).sum(-1) / 2
            - self.df * (size * math.log(2) / 2 + half)
            - self._log_gamma()
        )

    def entropy(self) -> Any:
        size = self._event_shape[0]
        steps = wt.arange(size, dtype=self.df.dtype, device=self.df.device)
        slopes = wt.digamma((self.df[..., None] - steps) / 2).sum(-1)
        return (
            (size + 1) * (self._half_log_det() + size * math.log(2) / 2)
            + self._log_gamma()
            - (self.df - size - 1) / 2 * slopes
            + self.df * size / 2
        )
