"""The F distribution of Fisher and Snedecor."""

from __future__ import annotations

import math
from typing import Any

import warptape

from . import constraints
from .distribution import Distribution
from .gamma import Gamma
from .utils import broadcast_all

__all__ = ["FisherSnedecor"]


class FisherSnedecor(Distribution):
    """The ratio of two chi-squared variables with `df1` and `df2` degrees of freedom, each over its own."""

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        self._above = Gamma(self.df1 * 0.5, self.df1 * 0.5, validate_args=validate_args)
        self._below = Gamma(self.df2 * 0.5, self.df2 * 0.5, validate_args=validate_args)
        super().__init__(self.df1.shape, validate_args=validate_args)

    @property
    def mean(self) -> Any:
        return warptape.where(self.df2 > 2, self.df2 / (self.df2 - 2), math.nan)

    @property
    def mode(self) -> Any:
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return warptape.where(self.df1 > 2, found, math.nan)

    @property
    def variance(self) -> Any:
        a, b = self.df1, self.df2
        found = 2 * b.square() * (a + b - 2) / (a * (b - 2).square() * (b - 4))
        return warptape.where(b > 4, found, math.nan)

    def rsample(self, sample_shape: Any = ()) -> Any:
        # The first is drawn first, as PyTorch does.
        above = self._above.rsample(sample_shape)
        below = self._below.rsample(sample_shape)
        tiny = warptape.finfo(below.dtype).tiny
        return (above / below.clamp(min=tiny)).clamp(min=tiny)

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        a, b = self.df1 * 0.5, self.df2 * 0.5
        ratio = self.df1 / self.df2
        beta = warptape.lgamma(a + b) - warptape.lgamma(a) - warptape.lgamma(b)
        return beta + a * ratio.log() + (a - 1) * value.log() - (a + b) * (ratio * value).log1p()
