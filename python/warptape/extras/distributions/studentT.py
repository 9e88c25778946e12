"""Student's t-distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt

from . import constraints
from .chi2 import Chi2
from .distribution import Distribution
from .utils import broadcast_all


class StudentT(Distribution):
    """Student's t with `df` degrees of freedom, location `loc` and `scale`.

    Args:
        df, scale: positive.
        loc: the mode.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.StudentT(torch.tensor(4.0)).variance
    tensor(2.)
    """

    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    mode = property(attrgetter("loc"))

    def __init__(
        self,
        df: wt.Tensor | float,
        loc: wt.Tensor | float = 0.0,
        scale: wt.Tensor | float = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        super().__init__(self.df.shape, validate_args=validate_args)

    mean = property(lambda self: self.loc.masked_fill(self.df <= 1, math.nan))

    @property
    def variance(self) -> Any:
        value = self.scale.square() * self.df / (self.df - 2)
        return value.masked_fill(self.df <= 2, math.inf).masked_fill(self.df <= 1, math.nan)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        normal = wt.randn(shape, dtype=self.df.dtype, device=self.df.device)
        chi2 = Chi2(self.df, validate_args=False).rsample(sample_shape)
        return self.loc + self.scale * normal * wt.rsqrt(chi2 / self.df)

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        y = (value - self.loc) / self.scale
        norm = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi)
        norm = norm + wt.lgamma(0.5 * self.df) - wt.lgamma(0.5 * (self.df + 1.0))
        return -0.5 * (self.df + 1.0) * (y.square() / self.df).log1p() - norm

    def entropy(self) -> Any:
        half = 0.5 * self.df
        beta = wt.lgamma(half) + math.lgamma(0.5) - wt.lgamma(half + 0.5)
        more = wt.digamma(half + 0.5) - wt.digamma(half)
        return self.scale.log() + (half + 0.5) * more + 0.5 * self.df.log() + beta
