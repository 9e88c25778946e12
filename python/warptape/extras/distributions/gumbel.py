"""The Gumbel distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from .distribution import LocationScale


class Gumbel(LocationScale):
    """Gumbel with location `loc` and `scale`.

    Args:
        loc: the mode.
        scale: positive.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.Gumbel(0.0, 1.0).mean
    tensor(0.5772)
    """

    mean = property(lambda self: self.loc + self.scale * 0.57721566490153286060651209008240243)
    stddev = property(lambda self: math.pi / math.sqrt(6) * self.scale)
    variance = property(lambda self: self.stddev.square())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        limits = wt.finfo(self.loc.dtype)
        shape = self._extended_shape(sample_shape)
        uniform = wt.rand(shape, dtype=self.loc.dtype, device=self.loc.device)
        # inside of (0, 1), where PyTorch takes it
        return self.icdf(limits.tiny + uniform * (1 - limits.eps - limits.tiny))

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        y = (self.loc - value) / self.scale
        return y - y.exp() - self.scale.log()

    def cdf(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return (-((self.loc - value) / self.scale).exp()).exp()

    def icdf(self, value: wt.Tensor) -> Any:
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Any:
        return self.scale.log() + 1.57721566490153286060651209008240243
