"""The multinomial distribution."""

from __future__ import annotations

import math
from typing import Any

import warptape

from . import constraints
from .binomial import Binomial
from .categorical import OverCategorical
from .utils import broadcast_all


class Multinomial(OverCategorical):
    """Counts of K kinds among `total_count` draws, from `probs` or `logits` of shape (*, K)."""

    def __init__(
        self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        super().__init__(probs, logits, validate_args)

    support = constraints.dependent_property(
        lambda self: constraints.multinomial(self.total_count),
        is_discrete=True,
        event_dim=1,
        doc="Possible values.",
    )
    mean = property(lambda self: self.probs * self.total_count)
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs))

    def sample(self, sample_shape: Any = ()) -> Any:
        drawn = self._categorical.sample((self.total_count, *sample_shape))
        counts = self.probs.new_zeros(self._extended_shape(sample_shape))
        return counts.scatter_add_(
            -1, drawn.movedim(0, -1), self.probs.new_ones(()).expand(drawn.movedim(0, -1).shape)
        )

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        ways = warptape.lgamma(value.sum(-1) + 1) - warptape.lgamma(value + 1).sum(-1)
        return ways + logits.masked_fill((value == 0) & (logits == -math.inf), 0).mul(value).sum(-1)

    def entropy(self) -> Any:
        n = self.total_count
        counts = Binomial(n, self.probs).enumerate_support()[1:]
        weights = Binomial(n, self.probs).log_prob(counts).exp()
        return (
            n * self._categorical.entropy()
            - math.lgamma(n + 1)
            + (weights * warptape.lgamma(counts + 1)).sum([0, -1])
        )
