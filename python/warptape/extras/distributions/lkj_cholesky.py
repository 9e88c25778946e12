"""Lower Cholesky factors of correlation matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from . import constraints
from .beta import Beta
from .distribution import Distribution
from .utils import broadcast_all

__all__ = ["LKJCholesky"]


class LKJCholesky(Distribution):
    """Factors L of correlation matrices with a density proportional to det(L L^T)^(concentration - 1).

    Lewandowski, Kurowicka and Joe, "Generating random correlation matrices based on vines and extended
    onion method", 2009, whose onion method makes the samples.

    Args:
        dim: rows of the matrices, at least 2.
        concentration: 1 makes all correlation matrices equally likely, more favours small correlations.
    """

    arg_constraints = {"concentration": constraints.positive}
    support = constraints.corr_cholesky

    def __init__(
        self, dim: int, concentration: wt.Tensor | float = 1.0, validate_args: bool | None = None
    ) -> None:
        if dim < 2:
            raise ValueError(f"Expected dim to be an integer greater than or equal to 2. Found dim={dim}.")
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        # The squared radius of row i is a beta variable.
        rows = wt.arange(dim - 1, dtype=self.concentration.dtype, device=self.concentration.device)
        above = wt.cat([rows.new_zeros(1), rows]) + 0.5
        below = self.concentration.unsqueeze(-1) + 0.5 * (dim - 2) - wt.cat([rows.new_zeros(1), rows]) / 2
        self._beta = Beta(above, below)
        super().__init__(self.concentration.shape, (dim, dim), validate_args)

    def _expanded(self, batch_shape: Sequence[int]) -> dict[str, Any]:
        expanded = LKJCholesky(self.dim, self.concentration.expand(batch_shape), validate_args=False)
        return {"concentration": expanded.concentration, "_beta": self._beta.expand((*batch_shape, self.dim))}

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with wt.no_grad():
            radius2 = self._beta.sample(sample_shape).unsqueeze(-1)
            shape = self._extended_shape(sample_shape)
            like: dict[str, Any] = {"dtype": radius2.dtype, "device": radius2.device}
            directions = wt.randn(shape, **like).tril(-1)
            unit = directions / directions.norm(dim=-1, keepdim=True)
            unit[..., 0, :].fill_(0.0)
            inner = radius2.sqrt() * unit
            left = 1 - inner.square().sum(-1)
            return inner + left.clamp(min=wt.finfo(inner.dtype).tiny).sqrt().diag_embed()

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        diagonal = value.diagonal(dim1=-1, dim2=-2)[..., 1:]
        rows = wt.arange(2, self.dim + 1, device=self.concentration.device)
        order = 2 * (self.concentration - 1).unsqueeze(-1) + self.dim - rows
        unnormalized = (order * diagonal.log()).sum(-1)
        # The normalizer of page 1999 of the paper.
        n = self.dim - 1
        alpha = self.concentration + 0.5 * n
        numerator = wt.mvlgamma(alpha - 0.5, n)
        return unnormalized - (0.5 * n * math.log(math.pi) + numerator - wt.lgamma(alpha) * n)
