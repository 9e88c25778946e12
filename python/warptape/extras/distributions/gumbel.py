"""The Gumbel distribution."""

from __future__ import annotations

import math
from typing import Any

import warptape

from .distribution import LocationScale


class Gumbel(LocationScale):
    """Gumbel with location `loc` and `scale`."""

    mean = property(lambda self: self.loc + self.scale * 0.57721566490153286060651209008240243)
    stddev = property(lambda self: math.pi / math.sqrt(6) * self.scale)
    variance = property(lambda self: self.stddev.square())

    def rsample(self, sample_shape: Any = ()) -> Any:
        limits = warptape.finfo(self.loc.dtype)
        shape = self._extended_shape(sample_shape)
        uniform = warptape.rand(shape, dtype=self.loc.dtype, device=self.loc.device)
        # inside of (0, 1), where PyTorch takes it
        return self.icdf(limits.tiny + uniform * (1 - limits.eps - limits.tiny))

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
