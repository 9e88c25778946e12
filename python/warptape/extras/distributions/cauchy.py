"""The Cauchy distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from .distribution import LocationScale


class Cauchy(LocationScale):
    """Cauchy with median `loc` and half width at half maximum `scale`.

    It has no mean and no variance.

    Args:
        loc: the median.
        scale: positive.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.Cauchy(0.0, 1.0).cdf(torch.tensor(1.0))
    tensor(0.7500)
    """

    mean = property(lambda self: self.loc.new_full(self._extended_shape(), math.nan))
    variance = property(lambda self: self.loc.new_full(self._extended_shape(), math.inf))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        return self.loc + self.loc.new_empty(shape).cauchy_() * self.scale

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return -math.log(math.pi) - self.scale.log() - (((value - self.loc) / self.scale) ** 2).log1p()

    def cdf(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return wt.atan((value - self.loc) / self.scale) / math.pi + 0.5

    def icdf(self, value: wt.Tensor) -> Any:
        return wt.tan(math.pi * (value - 0.5)) * self.scale + self.loc

    def entropy(self) -> Any:
        return math.log(4 * math.pi) + self.scale.log()
