"""The multivariate normal distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt
from warptape.core.namespaces import linalg

from . import constraints
from .distribution import Distribution
from .utils import lazy_property


class MultivariateNormal(Distribution):
    """Normal vectors of K elements with mean `loc` and one of three matrices of shape (*, K, K).

    Args:
        loc: the mean, of shape (*, K).
        covariance_matrix: positive definite.
        precision_matrix: its inverse.
        scale_tril: its lower Cholesky factor, which is what is computed with.
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    has_rsample = True
    mean = mode = property(attrgetter("loc"))

    def __init__(
        self,
        loc: wt.Tensor,
        covariance_matrix: wt.Tensor | None = None,
        precision_matrix: wt.Tensor | None = None,
        scale_tril: wt.Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        name, matrix = given_matrix(covariance_matrix, precision_matrix, scale_tril)
        batch = wt.broadcast_shapes(matrix.shape[:-2], loc.shape[:-1])
        setattr(self, name, matrix.expand((*batch, -1, -1)))
        self.loc = loc.expand((*batch, -1))
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)
        self._unbroadcasted_scale_tril = scale_factor(name, matrix).expand((*batch, -1, -1))

    @lazy_property
    def scale_tril(self) -> Any:
        return self._unbroadcasted_scale_tril

    @lazy_property
    def covariance_matrix(self) -> Any:
        return self._unbroadcasted_scale_tril @ self._unbroadcasted_scale_tril.mT

    @lazy_property
    def precision_matrix(self) -> Any:
        return wt.cholesky_inverse(self._unbroadcasted_scale_tril)

    variance = property(lambda self: self._unbroadcasted_scale_tril.square().sum(-1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        noise = wt.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (self._unbroadcasted_scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        away = (value - self.loc).unsqueeze(-1)
        scaled = linalg.solve_triangular(self._unbroadcasted_scale_tril, away, upper=False).squeeze(-1)
        return (
            -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + scaled.square().sum(-1))
            - self._half_log_det()
        )

    def _half_log_det(self) -> Any:
        return self._unbroadcasted_scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def entropy(self) -> Any:
        return 0.5 * self._event_shape[0] * (1.0 + math.log(2 * math.pi)) + self._half_log_det()


def given_matrix(
    covariance_matrix: wt.Tensor | None, precision_matrix: wt.Tensor | None, scale_tril: wt.Tensor | None
) -> tuple[str, Any]:
    """The name of the one matrix that is given, and itself.

    Args:
        covariance_matrix, precision_matrix, scale_tril: two are None.

    Raises: ValueError unless exactly one is given.
    """
    matrices = {
        "covariance_matrix": covariance_matrix,
        "precision_matrix": precision_matrix,
        "scale_tril": scale_tril,
    }
    present = {name: m for name, m in matrices.items() if m is not None}
    if len(present) != 1:
        raise ValueError(
            "Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified."
        )
    ((name, matrix),) = present.items()
    if matrix.dim() < 2:
        raise ValueError(f"{name} must be at least two-dimensional, with optional leading batch dimensions")
    return name, matrix


def scale_factor(name: str, matrix: wt.Tensor) -> Any:
    """The lower Cholesky factor of the covariance that a matrix of this name gives.

    Args:
        name: of the argument.
        matrix: [*, D, D].
    """
    if name == "scale_tril":
        return matrix
    return linalg.cholesky(matrix) if name == "covariance_matrix" else _factor_of_inverse(matrix)


def _factor_of_inverse(precision: Any) -> Any:
    """The lower Cholesky factor of the inverse: that of the matrix read backwards, inverted."""
    flipped = linalg.cholesky(precision.flip(-2, -1)).flip(-2, -1).mT
    identity = wt.eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
    return linalg.solve_triangular(flipped, identity, upper=False)
