"""Lower Cholesky factors of correlation matrices."""

from __future__ import annotations

import math
from typing import Any

import warptape

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

    def __init__(self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None) -> None:
        if dim < 2:
            raise ValueError(f"Expected dim to be an integer greater than or equal to 2. Found dim={dim}.")
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        # The squared radius of row i is a beta variable.
        rows = warptape.arange(dim - 1, dtype=self.concentration.dtype, device=self.concentration.device)
        above = warptape.cat([rows.new_zeros(1), rows]) + 0.5
        below = (
            self.concentration.unsqueeze(-1) + 0.5 * (dim - 2) - warptape.cat([rows.new_zeros(1), rows]) / 2
        )
        self._beta = Beta(above, below)
        super().__init__(self.concentration.shape, (dim, dim), validate_args)

    def _expanded(self, batch_shape: Any) -> dict[str, Any]:
        made = LKJCholesky(self.dim, self.concentration.expand(batch_shape), validate_args=False)
        return {"concentration": made.concentration, "_beta": self._beta.expand((*batch_shape, self.dim))}

    def sample(self, sample_shape: Any = ()) -> Any:
        with warptape.no_grad():
            radius2 = self._beta.sample(sample_shape).unsqueeze(-1)
            shape = self._extended_shape(sample_shape)
            like = {"dtype": radius2.dtype, "device": radius2.device}
            directions = warptape.randn(shape, **like).tril(-1)
            unit = directions / directions.norm(dim=-1, keepdim=True)
            unit[..., 0, :].fill_(0.0)
            inner = radius2.sqrt() * unit
            left = 1 - inner.square().sum(-1)
            return inner + left.clamp(min=warptape.finfo(inner.dtype).tiny).sqrt().diag_embed()

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        diagonal = value.diagonal(dim1=-1, dim2=-2)[..., 1:]
        rows = warptape.arange(2, self.dim + 1, device=self.concentration.device)
        order = 2 * (self.concentration - 1).unsqueeze(-1) + self.dim - rows
        unnormalized = (order * diagonal.log()).sum(-1)
        # The normalizer of page 1999 of the paper.
        n = self.dim - 1
        alpha = self.concentration + 0.5 * n
        numerator = warptape.mvlgamma(alpha - 0.5, n)
        return unnormalized - (0.5 * n * math.log(math.pi) + numerator - warptape.lgamma(alpha) * n)
