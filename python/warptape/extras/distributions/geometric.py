"""The geometric distribution."""

from __future__ import annotations

from typing import Any

import warptape
from warptape.nn import functional as F

from . import constraints
from .distribution import ProbsOrLogits
from .utils import broadcast_all


class Geometric(ProbsOrLogits):
    """The number of failures before the first success, which has probability `probs` or log-odds `logits`."""

    support = constraints.nonnegative_integer

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._take(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)
        if self._validate_args and probs is not None and not (self.probs > 0).all():
            raise ValueError(
                f"Expected parameter probs of distribution {self!r} to be positive, got {self.probs}"
            )

    mean = property(lambda self: 1 / self.probs - 1)
    mode = property(lambda self: warptape.zeros_like(self.probs))
    variance = property(lambda self: (1 / self.probs - 1) / self.probs)

    def sample(self, sample_shape: Any = ()) -> Any:
        with warptape.no_grad():
            uniform = warptape.rand(
                self._extended_shape(sample_shape), dtype=self.probs.dtype, device=self.probs.device
            )
            uniform = uniform.clamp(min=warptape.finfo(uniform.dtype).tiny)
            return (uniform.log() / (-self.probs).log1p()).floor()

    def log_prob(self, value: Any) -> Any:
        self._validate_sample(value)
        value, probs = broadcast_all(value, self.probs)
        certain = (probs == 1) & (value == 0)  # 0 times log(0), whose gradient is nan
        return value * (-warptape.where(certain, 0.0, probs)).log1p() + self.probs.log()

    def entropy(self) -> Any:
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs
