"""The binomial distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt
from warptape.nn import functional as F

from . import constraints
from .distribution import ProbsOrLogits


class Binomial(ProbsOrLogits):
    """The number of successes among `total_count` trials, each with `probs` or log-odds `logits`.

    Args:
        total_count: at least 0.
        probs, logits: one of them, of shapes that broadcast.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.Binomial(4, probs=torch.tensor(0.5)).mean
    tensor(2.)
    """

    arg_constraints = {"total_count": constraints.nonnegative_integer, **ProbsOrLogits.arg_constraints}
    has_enumerate_support = True

    def __init__(
        self,
        total_count: wt.Tensor | int = 1,
        probs: wt.Tensor | float | None = None,
        logits: wt.Tensor | float | None = None,
        validate_args: bool | None = None,
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

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        with wt.no_grad():
            return wt.binomial(self.total_count.expand(shape), self.probs.expand(shape))

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        n, logits = self.total_count, self.logits
        ways = wt.lgamma(n + 1) - wt.lgamma(value + 1) - wt.lgamma(n - value + 1)
        return ways + value * logits + n * F.logsigmoid(-logits)

    def entropy(self) -> Any:
        values = self.enumerate_support(expand=False)
        log_prob = self.log_prob(values)
        return -(log_prob.exp() * log_prob).sum(0)

    def enumerate_support(self, expand: bool = True) -> Any:
        total = int(self.total_count.max())
        if not self.total_count.min() == total:
            raise NotImplementedError("Inhomogeneous total count not supported by `enumerate_support`.")
        values = wt.arange(1 + total, dtype=self.probs.dtype, device=self.probs.device)
        values = values.view((-1, *[1] * len(self._batch_shape)))
        return values.expand((-1, *self._batch_shape)) if expand else values
