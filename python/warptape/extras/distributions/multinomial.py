"""The multinomial distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from . import constraints
from .binomial import Binomial
from .categorical import OverCategorical
from .utils import broadcast_all


class Multinomial(OverCategorical):
    """Counts of K kinds among `total_count` draws, from `probs` or `logits` of shape (*, K).

    Args:
        total_count: one number.
        probs, logits: one of them.
        validate_args: whether parameters and values are checked.

    Raises: NotImplementedError for a total_count that is no int.

    >>> torch.distributions.Multinomial(4, torch.tensor([0.25, 0.75])).mean
    tensor([1., 3.])
    """

    def __init__(
        self,
        total_count: int = 1,
        probs: wt.Tensor | None = None,
        logits: wt.Tensor | None = None,
        validate_args: bool | None = None,
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

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        drawn = self._categorical.sample((self.total_count, *sample_shape))
        counts = self.probs.new_zeros(self._extended_shape(sample_shape))
        return counts.scatter_add_(
            -1, drawn.movedim(0, -1), self.probs.new_ones(()).expand(drawn.movedim(0, -1).shape)
        )

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        ways = wt.lgamma(value.sum(-1) + 1) - wt.lgamma(value + 1).sum(-1)
        return ways + logits.masked_fill((value == 0) & (logits == -math.inf), 0).mul(value).sum(-1)

    def entropy(self) -> Any:
        n = self.total_count
        counts = Binomial(n, self.probs).enumerate_support()[1:]
        weights = Binomial(n, self.probs).log_prob(counts).exp()
        return (
            n * self._categorical.entropy()
            - math.lgamma(n + 1)
            + (weights * wt.lgamma(counts + 1)).sum([0, -1])
        )
