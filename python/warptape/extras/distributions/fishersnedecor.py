"""The F distribution of Fisher and Snedecor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from . import constraints
from .distribution import Distribution
from .gamma import Gamma
from .utils import broadcast_all

__all__ = ["FisherSnedecor"]


class FisherSnedecor(Distribution):
    """The ratio of two chi-squared variables with `df1` and `df2` degrees of freedom, each over its own.

    Args:
        df1, df2: positive.
        validate_args: whether parameters and values are checked.
    """

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(
        self, df1: wt.Tensor | float, df2: wt.Tensor | float, validate_args: bool | None = None
    ) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        self._above = Gamma(self.df1 * 0.5, self.df1 * 0.5, validate_args=validate_args)
        self._below = Gamma(self.df2 * 0.5, self.df2 * 0.5, validate_args=validate_args)
        super().__init__(self.df1.shape, validate_args=validate_args)

    @property
    def mean(self) -> Any:
        return wt.where(self.df2 > 2, self.df2 / (self.df2 - 2), math.nan)

    @property
    def mode(self) -> Any:
        value = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return wt.where(self.df1 > 2, value, math.nan)

    @property
    def variance(self) -> Any:
        a, b = self.df1, self.df2
        value = 2 * b.square() * (a + b - 2) / (a * (b - 2).square() * (b - 4))
        return wt.where(b > 4, value, math.nan)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        # The first is drawn first, as PyTorch does.
        above = self._above.rsample(sample_shape)
        below = self._below.rsample(sample_shape)
        tiny = wt.finfo(below.dtype).tiny
        return (above / below.clamp(min=tiny)).clamp(min=tiny)

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        a, b = self.df1 * 0.5, self.df2 * 0.5
        ratio = self.df1 / self.df2
        beta = wt.lgamma(a + b) - wt.lgamma(a) - wt.lgamma(b)
        return beta + a * ratio.log() + (a - 1) * value.log() - (a + b) * (ratio * value).log1p()
