"""The logistic normal distribution."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from . import constraints
from .normal import Normal
from .transformed_distribution import TransformedDistribution
from .transforms import StickBreakingTransform

if TYPE_CHECKING:
    from warptape.core import Tensor

__all__ = ["LogisticNormal"]


class LogisticNormal(TransformedDistribution):
    """Points of a simplex: stick-breaking of normal vectors with mean `loc` and deviations `scale`.

    Args:
        loc, scale: of the vectors, [*, K - 1].
        validate_args: whether parameters and values are checked.
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.simplex
    loc = property(attrgetter("base_dist.base_dist.loc"), doc="The means.")
    scale = property(attrgetter("base_dist.base_dist.scale"), doc="The standard deviations.")

    def __init__(self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        base = base if base.batch_shape else base.expand([1])
        super().__init__(base, StickBreakingTransform(), validate_args)
