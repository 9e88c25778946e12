"""The Bernoulli distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt
from warptape.nn import functional as F

from . import constraints
from .distribution import ExponentialFamily, ProbsOrLogits
from .utils import broadcast_all


class Bernoulli(ProbsOrLogits, ExponentialFamily):
    """1 with probability `probs`, or with log-odds `logits`; else 0.

    >>> torch.distributions.Bernoulli(torch.tensor(0.25)).mean
    tensor(0.2500)
    """

    support = constraints.boolean
    has_enumerate_support = True

    def __init__(
        self,
        probs: wt.Tensor | float | None = None,
        logits: wt.Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._take(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)

    mean = property(attrgetter("probs"))

    @property
    def mode(self) -> Any:
        mode = (self.probs >= 0.5).to(self.probs.dtype)
        return mode.masked_fill(self.probs == 0.5, math.nan)

    variance = property(lambda self: self.probs * (1 - self.probs))

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with wt.no_grad():
            return wt.bernoulli(self.probs.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        return -F.binary_cross_entropy_with_logits(logits, value.to(logits.dtype), reduction="none")

    def entropy(self) -> Any:
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Any:
        values = wt.arange(2, dtype=self._param.dtype, device=self._param.device)
        values = values.view((-1, *[1] * len(self._batch_shape)))
        return values.expand((-1, *self._batch_shape)) if expand else values
