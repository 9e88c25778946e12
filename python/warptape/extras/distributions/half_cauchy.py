"""The half-Cauchy distribution."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

from warptape import core as wt

from . import constraints
from .cauchy import Cauchy
from .transformed_distribution import TransformedDistribution
from .transforms import AbsTransform

__all__ = ["HalfCauchy"]


class HalfCauchy(TransformedDistribution):
    """abs of a Cauchy variable with median 0 and half-width `scale`.

    Args:
        scale: positive.
        validate_args: whether parameters and values are checked.
    """

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    scale = property(attrgetter("base_dist.scale"), doc="Half-width of the Cauchy variable.")

    def __init__(self, scale: wt.Tensor | float, validate_args: bool | None = None) -> None:
        super().__init__(Cauchy(0, scale, validate_args=False), AbsTransform(), validate_args)

    mean = property(lambda self: wt.full_like(self.scale, math.inf))
    mode = property(lambda self: wt.zeros_like(self.scale))
    variance = property(lambda self: self.base_dist.variance)

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        value = wt.as_tensor(value, dtype=self.scale.dtype, device=self.scale.device)
        log_prob = self.base_dist.log_prob(value) + math.log(2)
        return log_prob.masked_fill(value < 0, -math.inf)

    def cdf(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, value: wt.Tensor) -> Any:
        return self.base_dist.icdf((value + 1) / 2)

    def entropy(self) -> Any:
        return self.base_dist.entropy() - math.log(2)
