"""The geometric distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt
from warptape.nn import functional as F

from . import constraints
from .distribution import ProbsOrLogits
from .utils import broadcast_all


class Geometric(ProbsOrLogits):
    """The number of failures before the first success, which has probability `probs` or log-odds `logits`.

    Args:
        probs, logits: one of them.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.Geometric(torch.tensor(0.25)).mean
    tensor(3.)
    """

    support = constraints.nonnegative_integer

    def __init__(
        self,
        probs: wt.Tensor | float | None = None,
        logits: wt.Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._take(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)
        if self._validate_args and probs is not None and not (self.probs > 0).all():
            raise ValueError(
                f"Expected parameter probs of distribution {self!r} to be positive, got {self.probs}"
            )

    mean = property(lambda self: 1 / self.probs - 1)
    mode = property(lambda self: wt.zeros_like(self.probs))
    variance = property(lambda self: (1 / self.probs - 1) / self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with wt.no_grad():
            uniform = wt.rand(
                self._extended_shape(sample_shape), dtype=self.probs.dtype, device=self.probs.device
            )
            uniform = uniform.clamp(min=wt.finfo(uniform.dtype).tiny)
            return (uniform.log() / (-self.probs).log1p()).floor()

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        value, probs = broadcast_all(value, self.probs)
        certain = (probs == 1) & (value == 0)  # 0 times log(0), whose gradient is nan
        return value * (-wt.where(certain, 0.0, probs)).log1p() + self.probs.log()

    def entropy(self) -> Any:
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs
