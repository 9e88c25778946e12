"""The negative binomial distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt
from warptape.nn import functional as F

from . import constraints
from .distribution import ProbsOrLogits
from .gamma import Gamma
from .utils import lazy_property

__all__ = ["NegativeBinomial"]


class NegativeBinomial(ProbsOrLogits):
    """Successes, each with `probs` or log-odds `logits`, before `total_count` failures have come.

    Args:
        total_count: at least 0.
        probs, logits: one of them.
        validate_args: whether parameters and values are checked.
    """

    arg_constraints = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer

    def __init__(
        self,
        total_count: wt.Tensor | float,
        probs: wt.Tensor | float | None = None,
        logits: wt.Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        (count,) = self._take(probs, logits, total_count)
        self.total_count = count.to(self._param.dtype)
        super().__init__(self._param.shape, validate_args=validate_args)

    mean = property(lambda self: self.total_count * self.logits.exp())
    mode = property(lambda self: ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0.0))
    variance = property(lambda self: self.mean / (-self.logits).sigmoid())

    @lazy_property
    def _gamma(self) -> Any:
        return Gamma(concentration=self.total_count, rate=(-self.logits).exp(), validate_args=False)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with wt.no_grad():
            return wt.poisson(self._gamma.sample(sample_shape))

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        n = self.total_count
        unnormalized = n * F.logsigmoid(-self.logits) + value * F.logsigmoid(self.logits)
        ways = wt.lgamma(n + value) - wt.lgamma(1.0 + value) - wt.lgamma(n)
        return unnormalized + ways.masked_fill(n + value == 0.0, 0.0)
