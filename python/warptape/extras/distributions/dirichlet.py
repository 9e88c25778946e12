"""The Dirichlet distribution."""

from __future__ import annotations

from typing import Any

import warptape

from . import constraints
from ._gamma import standard_dirichlet
from .distribution import ExponentialFamily


class Dirichlet(ExponentialFamily):
    """Over vectors of K shares, with `concentration` of shape (*, K)."""

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    has_rsample = True

    def __init__(self, concentration: Any, validate_args: bool | None = None) -> None:
        if concentration.dim() < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    mean = property(lambda self: self.concentration / self.concentration.sum(-1, True))

    @property
    def mode(self) -> Any:
        above = (self.concentration - 1).clamp(min=0.0)
        mode = above / above.sum(-1, True)
        flat = (self.concentration < 1).all(dim=-1, keepdim=True)
        peak = warptape.zeros_like(mode).scatter(-1, self.concentration.argmax(-1, True), 1.0)
        return warptape.where(flat, peak, mode)

    @property
    def variance(self) -> Any:
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total.square() * (total + 1))

    def rsample(self, sample_shape: Any = ()) -> Any:
        return standard_dirichlet(self.concentration.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        a = self.concentration
        return (
            warptape.xlogy(a - 1.0, value).sum(-1) + warptape.lgamma(a.sum(-1)) - warptape.lgamma(a).sum(-1)
        )

    def entropy(self) -> Any:
        a = self.concentration
        k, total = a.size(-1), a.sum(-1)
        return (
            warptape.lgamma(a).sum(-1)
            - warptape.lgamma(total)
            - (k - total) * warptape.digamma(total)
            - ((a - 1.0) * warptape.digamma(a)).sum(-1)
        )
