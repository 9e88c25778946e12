"""The multinomial distribution."""

from __future__ import annotations

import math
from typing import Any

import warptape

from . import constraints
from .binomial import Binomial
from .categorical import Categorical
from .distribution import Distribution
from .utils import broadcast_all


class Multinomial(Distribution):
    """Counts of K kinds among `total_count` draws, from `probs` or `logits` of shape (*, K)."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(
        self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        self._categorical = Categorical(probs=probs, logits=logits)
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def _expand_parts(self, new: Any, batch_shape: Any) -> None:
        new.total_count = self.total_count
        new._categorical = self._categorical.expand(batch_shape)

    @property
    def support(self) -> Any:
        return constraints.multinomial(self.total_count)

    @property
    def probs(self) -> Any:
        """Probabilities, normalised."""
        return self._categorical.probs

    @property
    def logits(self) -> Any:
        """Log-probabilities."""
        return self._categorical.logits

    @property
    def mean(self) -> Any:
        return self.probs * self.total_count

    @property
    def variance(self) -> Any:
        return self.total_count * self.probs * (1 - self.probs)

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
