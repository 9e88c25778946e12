"""The Kumaraswamy distribution: "A generalized probability density function", 1980."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from . import constraints
from .transformed_distribution import TransformedDistribution
from .transforms import AffineTransform, PowerTransform
from .uniform import Uniform
from .utils import broadcast_all

__all__ = ["Kumaraswamy"]


class Kumaraswamy(TransformedDistribution):
    """(1 - u^(1/b))^(1/a) of a uniform u, with a `concentration1` and b `concentration0`.

    Args:
        concentration1, concentration0: positive.
        validate_args: whether parameters and values are checked.
    """

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval

    def __init__(
        self,
        concentration1: wt.Tensor | float,
        concentration0: wt.Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        one = wt.ones_like(self.concentration0)
        steps = [
            PowerTransform(self.concentration0.reciprocal()),
            AffineTransform(1.0, -1.0),
            PowerTransform(self.concentration1.reciprocal()),
        ]
        super().__init__(Uniform(one * 0, one, validate_args=validate_args), steps, validate_args)

    def _expanded(self, batch_shape: Sequence[int]) -> dict[str, Any]:
        a, b = self.concentration1.expand(batch_shape), self.concentration0.expand(batch_shape)
        expanded = Kumaraswamy(a, b, validate_args=False)
        return {k: v for k, v in vars(expanded).items() if not k.startswith("_")}

    def _moment(self, n: int) -> Any:
        a, b = self.concentration1, self.concentration0
        place = 1 + n / a
        return (wt.lgamma(place) + wt.lgamma(b) - wt.lgamma(place + b)).exp() * b

    mean = property(lambda self: self._moment(1))
    variance = property(lambda self: self._moment(2) - self._moment(1).square())

    @property
    def mode(self) -> Any:
        a, b = self.concentration1, self.concentration0
        value = ((a - 1) / (a * b - 1)).pow(1 / a)
        return value.masked_fill((a < 1) | (b < 1), float("nan"))

    def entropy(self) -> Any:
        a, b = self.concentration1, self.concentration0
        harmonic = wt.digamma(b + 1) + 0.57721566490153286060  # Euler's constant
        return (1 - 1 / b) + (1 - 1 / a) * harmonic - a.log() - b.log()
