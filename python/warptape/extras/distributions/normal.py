"""The normal distribution."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

import warptape

from .distribution import ExponentialFamily, LocationScale


class Normal(LocationScale, ExponentialFamily):
    """Normal with mean `loc` and standard deviation `scale`.

    >>> torch.distributions.Normal(0.0, 2.0).stddev
    tensor(2.)
    """

    mean = property(attrgetter("loc"))
    stddev = property(attrgetter("scale"))
    variance = property(lambda self: self.scale.square())

    def sample(self, sample_shape: Any = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        with warptape.no_grad():
            return warptape.normal(self.loc.expand(shape), self.scale.expand(shape))

    def rsample(self, sample_shape: Any = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        noise = warptape.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + noise * self.scale

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        return -((value - self.loc) ** 2) / (2 * self.variance) - self.scale.log() - math.log(2 * math.pi) / 2

    def cdf(self, value: Any) -> Any:
        self._validate_sample(value)
        return 0.5 * (1 + warptape.erf((value - self.loc) / self.scale / math.sqrt(2)))

    def icdf(self, value: Any) -> Any:
        return self.loc + self.scale * warptape.erfinv(2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Any:
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()
