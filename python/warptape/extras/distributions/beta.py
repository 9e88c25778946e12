"""The beta distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from . import constraints
from .dirichlet import Dirichlet
from .distribution import ExponentialFamily
from .utils import broadcast_all


class Beta(ExponentialFamily):
    """Beta with `concentration1` (alpha) and `concentration0` (beta).

    Args:
        concentration1, concentration0: positive, of shapes that broadcast.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.Beta(torch.tensor(2.0), torch.tensor(2.0)).mean
    tensor(0.5000)
    """

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self,
        concentration1: wt.Tensor | float,
        concentration0: wt.Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        pair = wt.stack(broadcast_all(concentration1, concentration0), -1)
        self._dirichlet = Dirichlet(pair, validate_args=validate_args)
        super().__init__(self._dirichlet.batch_shape, validate_args=validate_args)

    concentration1 = property(lambda self: self._dirichlet.concentration[..., 0], doc="Alpha.")
    concentration0 = property(lambda self: self._dirichlet.concentration[..., 1], doc="Beta.")
    mean = property(lambda self: self._dirichlet.mean[..., 0])
    mode = property(lambda self: self._dirichlet.mode[..., 0])
    variance = property(lambda self: self._dirichlet.variance[..., 0])

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self._dirichlet.rsample(sample_shape).select(-1, 0)

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return self._dirichlet.log_prob(wt.stack([value, 1.0 - value], -1))

    def entropy(self) -> Any:
        return self._dirichlet.entropy()
