"""The gamma distribution, and chi-squared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt
from warptape.core.namespaces import special

from . import constraints
from .distribution import ExponentialFamily
from .standard_gamma import standard_gamma
from .utils import broadcast_all


class Gamma(ExponentialFamily):
    """Gamma with shape `concentration` and `rate` = 1 / scale.

    Args:
        concentration, rate: positive.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.Gamma(torch.tensor(3.0), torch.tensor(2.0)).mean
    tensor(1.5000)
    """

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(
        self, concentration: wt.Tensor | float, rate: wt.Tensor | float, validate_args: bool | None = None
    ) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    mean = property(lambda self: self.concentration / self.rate)
    mode = property(lambda self: ((self.concentration - 1) / self.rate).clamp(min=0))
    variance = property(lambda self: self.concentration / self.rate.square())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        value = standard_gamma(self.concentration.expand(self._extended_shape(sample_shape))) / self.rate
        value.detach().clamp_(min=wt.finfo(value.dtype).tiny)  # 0 has no logarithm; unrecorded
        return value

    def log_prob(self, value: wt.Tensor) -> Any:
        a, b = self.concentration, self.rate
        value = wt.as_tensor(value, dtype=b.dtype, device=b.device)
        self._validate_sample(value)
        return wt.xlogy(a, b) + wt.xlogy(a - 1, value) - b * value - wt.lgamma(a)

    def cdf(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return special.gammainc(self.concentration, self.rate * value)

    def entropy(self) -> Any:
        a = self.concentration
        return a - self.rate.log() + wt.lgamma(a) + (1.0 - a) * wt.digamma(a)
