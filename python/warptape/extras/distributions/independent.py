"""Batch dims that are read as part of the event."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from . import constraints
from .distribution import Distribution
from .utils import sum_rightmost

if TYPE_CHECKING:
    from warptape.core import Tensor


class Independent(Distribution):
    """Another distribution; the `reinterpreted_batch_ndims` rightmost batch dims belong to the event.

    Args:
        base_distribution: of each element.
        reinterpreted_batch_ndims: how many dims.
        validate_args: whether values are checked.

    >>> base = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
    >>> torch.distributions.Independent(base, 1).event_shape
    torch.Size([3])
    """

    arg_constraints: Any = {}
    has_rsample = property(attrgetter("base_dist.has_rsample"), doc="As the base distribution.")  # type: ignore[assignment]
    mean = property(attrgetter("base_dist.mean"))
    mode = property(attrgetter("base_dist.mode"))
    variance = property(attrgetter("base_dist.variance"))

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        shape = base_distribution.batch_shape + base_distribution.event_shape
        n = len(base_distribution.batch_shape) - reinterpreted_batch_ndims
        if n < 0:
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), "
                f"actual {reinterpreted_batch_ndims} vs {len(base_distribution.batch_shape)}"
            )
        self.base_dist = base_distribution
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        super().__init__(shape[:n], shape[n:], validate_args=validate_args)

    def _expanded(self, batch_shape: Sequence[int]) -> dict[str, Any]:
        inner = self.event_shape[: self.reinterpreted_batch_ndims]
        return {"base_dist": self.base_dist.expand((*batch_shape, *inner))}

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether enumerate_support() lists all values: no dim was reinterpreted, and the base has it."""
        return self.reinterpreted_batch_ndims == 0 and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> Any:
        """The base distribution's, over events with the dims that became part of them."""
        if not self.reinterpreted_batch_ndims:
            return self.base_dist.support
        return constraints.independent(self.base_dist.support, self.reinterpreted_batch_ndims)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Any:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Any:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Any:
        if self.reinterpreted_batch_ndims:
            raise NotImplementedError("Enumeration over cartesian product is not implemented")
        return self.base_dist.enumerate_support(expand=expand)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist}, {self.reinterpreted_batch_ndims})"
