"""The Dirichlet distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from . import constraints
from .distribution import ExponentialFamily
from .standard_gamma import standard_dirichlet


class Dirichlet(ExponentialFamily):
    """Over vectors of K shares, with `concentration` of shape (*, K).

    Args:
        concentration: positive.
        validate_args: whether parameters and values are checked.

    Raises: ValueError for a concentration without dims.

    >>> torch.distributions.Dirichlet(torch.tensor([1.0, 3.0])).mean
    tensor([0.2500, 0.7500])
    """

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    has_rsample = True

    def __init__(self, concentration: wt.Tensor, validate_args: bool | None = None) -> None:
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
        peak = wt.zeros_like(mode).scatter(-1, self.concentration.argmax(-1, True), 1.0)
        return wt.where(flat, peak, mode)

    @property
    def variance(self) -> Any:
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total.square() * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return standard_dirichlet(self.concentration.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        a = self.concentration
        return wt.xlogy(a - 1.0, value).sum(-1) + wt.lgamma(a.sum(-1)) - wt.lgamma(a).sum(-1)

    def entropy(self) -> Any:
        a = self.concentration
        k, total = a.size(-1), a.sum(-1)
        return (
            wt.lgamma(a).sum(-1)
            - wt.lgamma(total)
            - (k - total) * wt.digamma(total)
            - ((a - 1.0) * wt.digamma(a)).sum(-1)
        )
