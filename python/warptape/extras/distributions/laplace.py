"""The Laplace distribution."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import warptape

from .distribution import LocationScale


class Laplace(LocationScale):
    """Laplace with mean `loc` and mean absolute deviation `scale`."""

    mean = property(attrgetter("loc"))
    variance = property(lambda self: 2 * self.scale.square())
    stddev = property(lambda self: 2**0.5 * self.scale)

    def rsample(self, sample_shape: Any = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        u = warptape.rand(shape, dtype=self.loc.dtype, device=self.loc.device) * 2 - 1
        tiny = warptape.finfo(u.dtype).tiny
        return (
            self.loc
            - self.scale * u.sign() * (-u.abs().clamp(max=1 - warptape.finfo(u.dtype).eps / 2 + tiny)).log1p()
        )

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def cdf(self, value: Any) -> Any:
        self._validate_sample(value)
        away = value - self.loc
        return 0.5 - 0.5 * away.sign() * (-away.abs() / self.scale).expm1()

    def icdf(self, value: Any) -> Any:
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self) -> Any:
        return 1 + (2 * self.scale).log()
