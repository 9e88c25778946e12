"""The half-normal distribution."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

from warptape import core as wt

from . import constraints
from .normal import Normal
from .transformed_distribution import TransformedDistribution
from .transforms import AbsTransform


class HalfNormal(TransformedDistribution):
    """abs of a normal variable with mean 0 and standard deviation `scale`.

    Args:
        scale: positive.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.HalfNormal(torch.tensor(1.0)).mean
    tensor(0.7979)
    """

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    scale = property(attrgetter("base_dist.scale"), doc="Standard deviation of the normal variable.")

    def __init__(self, scale: wt.Tensor | float, validate_args: bool | None = None) -> None:
        super().__init__(Normal(0, scale, validate_args=False), AbsTransform(), validate_args)

    mean = property(lambda self: self.scale * math.sqrt(2 / math.pi))
    mode = property(lambda self: wt.zeros_like(self.scale))
    variance = property(lambda self: self.scale.square() * (1 - 2 / math.pi))

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        log_prob = self.base_dist.log_prob(value) + math.log(2)
        return log_prob.masked_fill(value < 0, -math.inf)

    def cdf(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, prob: Any) -> Any:
        return self.base_dist.icdf((prob + 1) / 2)

    def entropy(self) -> Any:
        return self.base_dist.entropy() - math.log(2)
