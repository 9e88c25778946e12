"""Student's t-distribution."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

import warptape

from . import constraints
from .chi2 import Chi2
from .distribution import Distribution
from .utils import broadcast_all


class StudentT(Distribution):
    """Student's t with `df` degrees of freedom, location `loc` and `scale`."""

    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    mode = property(attrgetter("loc"))

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        super().__init__(self.df.shape, validate_args=validate_args)

    mean = property(lambda self: self.loc.masked_fill(self.df <= 1, math.nan))

    @property
    def variance(self) -> Any:
        found = self.scale.square() * self.df / (self.df - 2)
        return found.masked_fill(self.df <= 2, math.inf).masked_fill(self.df <= 1, math.nan)

    def rsample(self, sample_shape: Any = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        normal = warptape.randn(shape, dtype=self.df.dtype, device=self.df.device)
        chi2 = Chi2(self.df, validate_args=False).rsample(sample_shape)
        return self.loc + self.scale * normal * warptape.rsqrt(chi2 / self.df)

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        y = (value - self.loc) / self.scale
        norm = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi)
        norm = norm + warptape.lgamma(0.5 * self.df) - warptape.lgamma(0.5 * (self.df + 1.0))
        return -0.5 * (self.df + 1.0) * (y.square() / self.df).log1p() - norm

    def entropy(self) -> Any:
        half = 0.5 * self.df
        beta = warptape.lgamma(half) + math.lgamma(0.5) - warptape.lgamma(half + 0.5)
        more = warptape.digamma(half + 0.5) - warptape.digamma(half)
        return self.scale.log() + (half + 0.5) * more + 0.5 * self.df.log() + beta
