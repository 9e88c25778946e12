"""The Poisson distribution."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import warptape

from . import constraints
from .distribution import ExponentialFamily
from .utils import broadcast_all


class Poisson(ExponentialFamily):
    """Counts with mean `rate`."""

    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    mean = variance = property(attrgetter("rate"))
    mode = property(lambda self: self.rate.floor())

    def sample(self, sample_shape: Any = ()) -> Any:
        with warptape.no_grad():
            return warptape.poisson(self.rate.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        rate, value = broadcast_all(self.rate, value)
        return warptape.xlogy(value, rate) - rate - warptape.lgamma(value + 1)
