"""The inverse gamma distribution."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

from warptape import core as wt

from . import constraints
from .gamma import Gamma
from .transformed_distribution import TransformedDistribution
from .transforms import PowerTransform

__all__ = ["InverseGamma"]


class InverseGamma(TransformedDistribution):
    """1 / x of a gamma variable with shape `concentration` and rate `rate`, its scale.

    Args:
        concentration, rate: positive.
        validate_args: whether parameters and values are checked.
    """

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive
    concentration = property(attrgetter("base_dist.concentration"), doc="The shape.")
    rate = property(attrgetter("base_dist.rate"), doc="The scale.")

    def __init__(
        self, concentration: wt.Tensor | float, rate: wt.Tensor | float, validate_args: bool | None = None
    ) -> None:
        base = Gamma(concentration, rate, validate_args=validate_args)
        super().__init__(base, PowerTransform(base.rate.new_tensor(-1.0)), validate_args)

    mode = property(lambda self: self.rate / (self.concentration + 1))

    @property
    def mean(self) -> Any:
        a = self.concentration
        return wt.where(a > 1, self.rate / (a - 1), math.inf)

    @property
    def variance(self) -> Any:
        a = self.concentration
        return wt.where(a > 2, self.rate.square() / ((a - 1).square() * (a - 2)), math.inf)

    def entropy(self) -> Any:
        a = self.concentration
        return a + self.rate.log() + wt.lgamma(a) - (1 + a) * wt.digamma(a)
