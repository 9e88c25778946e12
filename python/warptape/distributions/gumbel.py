"""The Gumbel distribution."""

from __future__ import annotations

import math
from typing import Any

from .distribution import LocationScale


class Gumbel(LocationScale):
    """Gumbel with location `loc` and `scale`."""

    mean = property(lambda self: self.loc + self.scale * 0.57721566490153286060651209008240243)
    stddev = property(lambda self: math.pi / math.sqrt(6) * self.scale)
    variance = property(lambda self: self.stddev.square())

    def rsample(self, sample_shape: Any = ()) -> Any:
        wait = self.loc.new_empty(self._extended_shape(sample_shape)).exponential_()
        return self.loc - self.scale * wait.log()

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        y = (self.loc - value) / self.scale
        return y - y.exp() - self.scale.log()

    def cdf(self, value: Any) -> Any:
        self._validate_sample(value)
        return (-((self.loc - value) / self.scale).exp()).exp()

    def icdf(self, value: Any) -> Any:
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Any:
        return self.scale.log() + 1.57721566490153286060651209008240243
