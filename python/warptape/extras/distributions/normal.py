"""The normal distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt

from .distribution import ExponentialFamily, LocationScale


class Normal(LocationScale, ExponentialFamily):
    """Normal with mean `loc` and standard deviation `scale`.

    >>> torch.distributions.Normal(0.0, 2.0).stddev
    tensor(2.)
    """

    mean = property(attrgetter("loc"))
    stddev = property(attrgetter("scale"))
    variance = property(lambda self: self.scale.square())

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        with wt.no_grad():
            return wt.normal(self.loc.expand(shape), self.scale.expand(shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        noise = wt.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + noise * self.scale

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return -((value - self.loc) ** 2) / (2 * self.variance) - self.scale.log() - math.log(2 * math.pi) / 2

    def cdf(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return 0.5 * (1 + wt.erf((value - self.loc) / self.scale / math.sqrt(2)))

    def icdf(self, value: wt.Tensor) -> Any:
        return self.loc + self.scale * wt.erfinv(2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Any:
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()
