"""The Laplace distribution."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt

from .distribution import LocationScale


class Laplace(LocationScale):
    """Laplace with mean `loc` and mean absolute deviation `scale`.

    Args:
        loc: the mean.
        scale: positive.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.Laplace(0.0, 1.0).variance
    tensor(2.)
    """

    mean = property(attrgetter("loc"))
    variance = property(lambda self: 2 * self.scale.square())
    stddev = property(lambda self: 2**0.5 * self.scale)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        u = wt.rand(shape, dtype=self.loc.dtype, device=self.loc.device) * 2 - 1
        tiny = wt.finfo(u.dtype).tiny
        return (
            self.loc
            - self.scale * u.sign() * (-u.abs().clamp(max=1 - wt.finfo(u.dtype).eps / 2 + tiny)).log1p()
        )

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def cdf(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        away = value - self.loc
        return 0.5 - 0.5 * away.sign() * (-away.abs() / self.scale).expm1()

    def icdf(self, value: wt.Tensor) -> Any:
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self) -> Any:
        return 1 + (2 * self.scale).log()
