"""The Poisson distribution."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt

from . import constraints
from .distribution import ExponentialFamily
from .utils import broadcast_all


class Poisson(ExponentialFamily):
    """Counts with mean `rate`.

    Args:
        rate: at least 0.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.Poisson(torch.tensor(3.0)).variance
    tensor(3.)
    """

    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, rate: wt.Tensor | float, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    mean = variance = property(attrgetter("rate"))
    mode = property(lambda self: self.rate.floor())

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with wt.no_grad():
            return wt.poisson(self.rate.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        rate, value = broadcast_all(self.rate, value)
        return wt.xlogy(value, rate) - rate - wt.lgamma(value + 1)
