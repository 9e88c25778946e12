"""The gamma distribution, and chi-squared."""

from __future__ import annotations

from typing import Any

import warptape

from . import constraints
from ._gamma import standard_gamma
from .distribution import ExponentialFamily
from .utils import broadcast_all


class Gamma(ExponentialFamily):
    """Gamma with shape `concentration` and `rate` = 1 / scale."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    mean = property(lambda self: self.concentration / self.rate)
    mode = property(lambda self: ((self.concentration - 1) / self.rate).clamp(min=0))
    variance = property(lambda self: self.concentration / self.rate.square())

    def rsample(self, sample_shape: Any = ()) -> Any:
        value = standard_gamma(self.concentration.expand(self._extended_shape(sample_shape))) / self.rate
        value.detach().clamp_(min=warptape.finfo(value.dtype).tiny)  # 0 has no logarithm; unrecorded
        return value

    def log_prob(self, value: Any) -> Any:
        a, b = self.concentration, self.rate
        value = warptape.as_tensor(value, dtype=b.dtype, device=b.device)
        self._validate_sample(value)
        return warptape.xlogy(a, b) + warptape.xlogy(a - 1, value) - b * value - warptape.lgamma(a)

    def cdf(self, value: Any) -> Any:
        self._validate_sample(value)
        return warptape.special.gammainc(self.concentration, self.rate * value)

    def entropy(self) -> Any:
        a = self.concentration
        return a - self.rate.log() + warptape.lgamma(a) + (1.0 - a) * warptape.digamma(a)
