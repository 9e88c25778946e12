"""The Weibull distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from . import constraints
from .exponential import Exponential
from .transformed_distribution import TransformedDistribution
from .transforms import AffineTransform, PowerTransform
from .utils import broadcast_all

__all__ = ["Weibull"]


class Weibull(TransformedDistribution):
    """`scale` times an exponential variable to the power 1 / `concentration`.

    Args:
        scale, concentration: positive.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.Weibull(torch.tensor(2.0), torch.tensor(1.0)).mean
    tensor(2.)
    """

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive

    def __init__(
        self, scale: wt.Tensor | float, concentration: wt.Tensor | float, validate_args: bool | None = None
    ) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        base = Exponential(wt.ones_like(self.scale), validate_args=validate_args)
        steps = [PowerTransform(self.concentration.reciprocal()), AffineTransform(0, self.scale)]
        super().__init__(base, steps, validate_args)

    def _expanded(self, batch_shape: Sequence[int]) -> dict[str, Any]:
        scale, shape = self.scale.expand(batch_shape), self.concentration.expand(batch_shape)
        expanded = Weibull(scale, shape, validate_args=False)
        return {k: v for k, v in vars(expanded).items() if not k.startswith("_")}

    def _moment(self, n: int) -> Any:
        return wt.lgamma(1 + n / self.concentration).exp()

    mean = property(lambda self: self.scale * self._moment(1))
    variance = property(lambda self: self.scale.square() * (self._moment(2) - self._moment(1).square()))

    @property
    def mode(self) -> Any:
        k = self.concentration
        return self.scale * ((k - 1) / k).clamp(min=0).pow(1 / k)

    def entropy(self) -> Any:
        k = self.concentration
        return 0.57721566490153286060 * (1 - 1 / k) + (self.scale / k).log() + 1  # Euler's constant
