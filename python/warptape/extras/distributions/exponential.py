"""The exponential distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from . import constraints
from .distribution import ExponentialFamily
from .utils import broadcast_all


class Exponential(ExponentialFamily):
    """Exponential with `rate` = 1 / mean.

    Args:
        rate: positive.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.Exponential(torch.tensor(2.0)).mean
    tensor(0.5000)
    """

    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, rate: wt.Tensor | float, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    mean = property(lambda self: self.rate.reciprocal())
    stddev = mean
    mode = property(lambda self: wt.zeros_like(self.rate))
    variance = property(lambda self: self.rate.pow(-2))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.rate.new_empty(self._extended_shape(sample_shape)).exponential_() / self.rate

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return self.rate.log() - self.rate * value

    def cdf(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return -(-self.rate * value).expm1()

    def icdf(self, value: wt.Tensor) -> Any:
        return -(-value).log1p() / self.rate

    def entropy(self) -> Any:
        return 1.0 - self.rate.log()
