"""The categorical distribution over one-hot vectors."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt
from warptape.nn import functional as F

from . import constraints
from .categorical import OverCategorical


class OneHotCategorical(OverCategorical):
    """Over one-hot vectors of K elements, from `probs` or `logits` of shape (*, K).

    Args:
        probs, logits: one of them.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.OneHotCategorical(torch.tensor([0.0, 1.0])).sample()
    tensor([0., 1.])
    """

    support = constraints.one_hot
    has_enumerate_support = True

    mean = property(attrgetter("probs"))
    mode = property(lambda self: F.one_hot(self._categorical.mode, self.event_shape[0]).to(self.probs.dtype))
    variance = property(lambda self: self.probs * (1 - self.probs))

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        return F.one_hot(self._categorical.sample(sample_shape), self.event_shape[0]).to(self.probs.dtype)

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self) -> Any:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Any:
        n = self.event_shape[0]
        values = wt.eye(n, dtype=self.probs.dtype, device=self.probs.device)
        values = values.view((n, *[1] * len(self.batch_shape), n))
        return values.expand((n, *self.batch_shape, n)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """Gradients pass through the samples as if they were the probabilities (Bengio et al., "Estimating or
    propagating gradients through stochastic neurons", section 4)."""

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())
