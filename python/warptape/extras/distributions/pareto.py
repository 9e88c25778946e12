"""The Pareto distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from . import constraints
from .exponential import Exponential
from .transformed_distribution import TransformedDistribution
from .transforms import AffineTransform, ExpTransform
from .utils import broadcast_all

__all__ = ["Pareto"]


class Pareto(TransformedDistribution):
    """Values from `scale` on, whose tail falls with the power `alpha`.

    Args:
        scale, alpha: positive.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.Pareto(torch.tensor(1.0), torch.tensor(3.0)).mean
    tensor(1.5000)
    """

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}

    def __init__(
        self, scale: wt.Tensor | float, alpha: wt.Tensor | float, validate_args: bool | None = None
    ) -> None:
        self.scale, self.alpha = broadcast_all(scale, alpha)
        base = Exponential(self.alpha, validate_args=validate_args)
        super().__init__(base, [ExpTransform(), AffineTransform(0, self.scale)], validate_args)

    def _expanded(self, batch_shape: Sequence[int]) -> dict[str, Any]:
        scale, alpha = self.scale.expand(batch_shape), self.alpha.expand(batch_shape)
        expanded = Pareto(scale, alpha, validate_args=False)
        return {k: v for k, v in vars(expanded).items() if not k.startswith("_")}

    support = constraints.dependent_property(
        lambda self: constraints.greater_than_eq(self.scale),
        is_discrete=False,
        event_dim=0,
        doc="Possible values.",
    )  # type: ignore[assignment]
    mode = property(lambda self: self.scale)

    @property
    def mean(self) -> Any:
        return wt.where(self.alpha > 1, self.alpha * self.scale / (self.alpha - 1), math.inf)

    @property
    def variance(self) -> Any:
        a = self.alpha
        return wt.where(a > 2, self.scale.square() * a / ((a - 1).square() * (a - 2)), math.inf)

    def entropy(self) -> Any:
        return (self.scale / self.alpha).log() + 1 + self.alpha.reciprocal()
