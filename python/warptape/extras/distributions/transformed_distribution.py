"""Distributions of transformed samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt

from . import constraints
from .distribution import Distribution
from .independent import Independent
from .transforms import ComposeTransform, Transform
from .utils import sum_rightmost

__all__ = ["TransformedDistribution"]


class TransformedDistribution(Distribution):
    """The distribution of f(x) with x of `base_distribution`, by the change of variables.

    Args:
        base_distribution: whose samples are transformed.
        transforms: one transform, or a list in the order of use.
    """

    arg_constraints: Any = {}
    has_rsample = property(attrgetter("base_dist.has_rsample"), doc="As the base distribution.")  # type: ignore[assignment]

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        if isinstance(transforms, Transform):
            transforms = [transforms]
        if not isinstance(transforms, list) or not all(isinstance(t, Transform) for t in transforms):
            raise ValueError(f"transforms must be a Transform or list, but was {transforms}")
        self.transforms = transforms
        composed = ComposeTransform(transforms)
        shape = base_distribution.batch_shape + base_distribution.event_shape
        need = composed.domain.event_dim if transforms else 0
        if len(shape) < need:
            raise ValueError(
                f"base_distribution needs to have shape with size at least {need}, but got {shape}."
            )
        out = composed.forward_shape(shape)
        base_distribution = base_distribution.expand(
            composed.inverse_shape(out)[: len(base_distribution.batch_shape)]
        )
        more = need - len(base_distribution.event_shape)
        self.base_dist: Any = Independent(base_distribution, more) if more > 0 else base_distribution
        change = (composed.codomain.event_dim - composed.domain.event_dim) if transforms else 0
        event_dim = max(
            len(base_distribution.event_shape) + change, composed.codomain.event_dim if transforms else 0
        )
        cut = len(out) - event_dim
        super().__init__(out[:cut], out[cut:], validate_args=validate_args)

    def _expanded(self, batch_shape: Sequence[int]) -> dict[str, Any]:
        shape = batch_shape + self.event_shape
        for transform in reversed(self.transforms):
            shape = transform.inverse_shape(shape)
        return {"base_dist": self.base_dist.expand(shape[: len(shape) - len(self.base_dist.event_shape)])}

    @constraints.dependent_property
    def support(self) -> Any:
        """The codomain of the last transform; the base distribution's where there is none."""
        if not self.transforms:
            return self.base_dist.support
        constraint = self.transforms[-1].codomain
        more = len(self.event_shape) - constraint.event_dim
        return constraints.independent(constraint, more) if more > 0 else constraint

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with wt.no_grad():
            return self._transformed(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self._transformed(self.base_dist.rsample(sample_shape))

    def _transformed(self, x: wt.Tensor) -> Any:
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        event_dim = len(self.event_shape)
        total: Any = 0.0
        y = value
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            event_dim += transform.domain.event_dim - transform.codomain.event_dim
            stretch = transform.log_abs_det_jacobian(x, y)
            total = total - sum_rightmost(stretch, event_dim - transform.domain.event_dim)
            y = x
        base = self.base_dist.log_prob(y)
        return total + sum_rightmost(base, event_dim - len(self.base_dist.event_shape))

    def _by_sign(self, p: wt.Tensor) -> Any:
        """Read from the other end where the whole map falls."""
        sign = math.prod(transform.sign for transform in self.transforms)
        return p if isinstance(sign, int) and sign == 1 else sign * (p - 0.5) + 0.5

    def cdf(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        return self._by_sign(self.base_dist.cdf(value))

    def icdf(self, value: wt.Tensor) -> Any:
        return self._transformed(self.base_dist.icdf(self._by_sign(value)))
