"""The generalized Pareto distribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from warptape import core as wt

from . import constraints
from .distribution import Distribution
from .utils import broadcast_all

__all__ = ["GeneralizedPareto"]


class GeneralizedPareto(Distribution):
    """Values from `loc` on: ((1 - u)^-c - 1) / c of a uniform u times `scale`, c the `concentration`.

    With concentration 0 it is the exponential distribution; below 0 it ends at loc - scale / c.
    """

    arg_constraints = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "concentration": constraints.real,
    }
    has_rsample = True

    def __init__(
        self,
        loc: wt.Tensor | float,
        scale: wt.Tensor | float,
        concentration: wt.Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.scale, self.concentration = broadcast_all(loc, scale, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def _by_concentration(self, zero: wt.Tensor, other: Callable[[Any], Any]) -> Any:
        """`zero` where the concentration is, to rounding, 0; `other` is called with one that is not."""
        c = self.concentration
        is_zero = wt.isclose(c, wt.zeros_like(c))
        return wt.where(is_zero, zero, other(wt.where(is_zero, 1.0, c)))

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """Possible values."""
        end = self.loc - self.scale / self.concentration
        if (self.concentration >= 0).all():
            return constraints.greater_than_eq(self.loc)
        return constraints.interval(self.loc, wt.where(self.concentration < 0, end, math.inf))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        return self.icdf(wt.rand(shape, dtype=self.loc.dtype, device=self.loc.device))

    def _survival(self, value: wt.Tensor) -> tuple[Any, Any]:
        """z, and the logarithm of the probability to be above."""
        z = (value - self.loc) / self.scale
        return z, self._by_concentration(-z, lambda c: -(c * z).log1p() / c)

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        z = (value - self.loc) / self.scale
        tail = self._by_concentration(-z, lambda c: -(1 + 1 / c) * (c * z).log1p())
        return tail - self.scale.log()

    def cdf(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return -self._survival(value)[1].expm1()

    def icdf(self, value: wt.Tensor) -> Any:
        left = (-value).log1p()
        return self.loc + self.scale * self._by_concentration(-left, lambda c: (-c * left).expm1() / c)

    @property
    def mean(self) -> Any:
        c = self.concentration
        return wt.where(c < 1, self.loc + self.scale / (1 - c), math.inf)

    @property
    def variance(self) -> Any:
        c = self.concentration
        value = self.scale.square() / ((1 - c).square() * (1 - 2 * c))
        return wt.where(c < 0.5, value, math.inf)

    mode = property(lambda self: self.loc)

    def entropy(self) -> Any:
        return self.scale.log() + self.concentration + 1
