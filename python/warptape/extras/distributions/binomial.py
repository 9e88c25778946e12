"""The binomial distribution."""

from __future__ import annotations

from typing import Any

import warptape
from warptape.nn import functional as F

from . import constraints
from .distribution import ProbsOrLogits


class Binomial(ProbsOrLogits):
    """The number of successes among `total_count` trials, each with `probs` or log-odds `logits`."""

    arg_constraints = {"total_count": constraints.nonnegative_integer, **ProbsOrLogits.arg_constraints}
    has_enumerate_support = True

    def __init__(
        self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        (count,) = self._take(probs, logits, total_count)
        self.total_count = count.to(self._param.dtype)
        super().__init__(self.total_count.shape, validate_args=validate_args)

    support = constraints.dependent_property(
        lambda self: constraints.integer_interval(0, self.total_count),
        is_discrete=True,
        event_dim=0,
        doc="Possible values.",
    )
    mean = property(lambda self: self.total_count * self.probs)
    mode = property(lambda self: ((self.total_count + 1) * self.probs).floor().clamp(max=self.total_count))
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs))

    def sample(self, sample_shape: Any = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        with warptape.no_grad():
            return warptape.binomial(self.total_count.expand(shape), self.probs.expand(shape))

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        n, logits = self.total_count, self.logits
        ways = warptape.lgamma(n + 1) - warptape.lgamma(value + 1) - warptape.lgamma(n - value + 1)
        return ways + value * logits + n * F.logsigmoid(-logits)

    def entropy(self) -> Any:
        values = self.enumerate_support(expand=False)
        log_prob = self.log_prob(values)
        return -(log_prob.exp() * log_prob).sum(0)

    def enumerate_support(self, expand: bool = True) -> Any:
        total = int(self.total_count.max())
        if not self.total_count.min() == total:
            raise NotImplementedError("Inhomogeneous total count not supported by `enumerate_support`.")
        values = warptape.arange(1 + total, dtype=self.probs.dtype, device=self.probs.device)
        values = values.view((-1, *[1] * len(self._batch_shape)))
        return values.expand((-1, *self._batch_shape)) if expand else values
