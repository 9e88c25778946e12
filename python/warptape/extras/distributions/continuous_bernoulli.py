"""The continuous Bernoulli distribution: Loaiza-Ganem and Cunningham, 2019 (arXiv 1907.06845)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from warptape import core as wt
from warptape.nn import functional as F

from . import constraints
from .distribution import ExponentialFamily, ProbsOrLogits
from .utils import clamp_probs

__all__ = ["ContinuousBernoulli"]


class ContinuousBernoulli(ProbsOrLogits, ExponentialFamily):
    """Values in [0, 1] with a density proportional to probs^x (1 - probs)^(1 - x).

    Args:
        probs: or log-odds `logits`.
        lims: between which probabilities the normalizer, which is 0 / 0 at 0.5, is taken by its series.
    """

    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self,
        probs: wt.Tensor | float | None = None,
        logits: wt.Tensor | float | None = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:
        self._take(probs, logits)
        self._lims = lims
        super().__init__(self._param.shape, validate_args=validate_args)
        if probs is not None:
            self.probs = clamp_probs(self.probs)

    def _away(self) -> tuple[Any, Any]:
        """Where probs is outside of lims, and probs with the others set to a bound."""
        outside = (self.probs <= self._lims[0]) | (self.probs > self._lims[1])
        return outside, wt.where(outside, self.probs, self._lims[0])

    def _log_constant(self) -> Any:
        outside, p = self._away()
        low, high = p.clamp(max=0.5), p.clamp(min=0.5)
        below = (-2.0 * low).log1p()
        above = (2.0 * high - 1.0).log()
        exact = ((-p).log1p() - p.log()).abs().log() - wt.where(p <= 0.5, below, above)
        x = (self.probs - 0.5).square()
        return wt.where(outside, exact, math.log(2.0) + (4.0 / 3.0 + 104.0 / 45.0 * x) * x)

    @property
    def mean(self) -> Any:
        outside, p = self._away()
        exact = p / (2.0 * p - 1.0) + 1.0 / ((-p).log1p() - p.log())
        x = self.probs - 0.5
        return wt.where(outside, exact, 0.5 + (1.0 / 3.0 + 16.0 / 45.0 * x.square()) * x)

    @property
    def variance(self) -> Any:
        outside, p = self._away()
        exact = p * (p - 1.0) / (1.0 - 2.0 * p).square() + 1.0 / ((-p).log1p() - p.log()).square()
        x = (self.probs - 0.5).square()
        series = 1.0 / 12.0 - (1.0 / 15.0 - 128.0 / 945.0 * x) * x
        return wt.where(outside, exact, series)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        return self.icdf(wt.rand(shape, dtype=self.probs.dtype, device=self.probs.device))

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        logits, value = wt.broadcast_tensors(self.logits, value)
        cross = F.binary_cross_entropy_with_logits(logits, value, reduction="none")
        return self._log_constant() - cross

    def cdf(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        outside, p = self._away()
        powers = p.pow(value) * (1.0 - p).pow(1.0 - value)
        cumulative = wt.where(outside, (powers + p - 1.0) / (2.0 * p - 1.0), value)
        return cumulative.masked_fill(value <= 0.0, 0.0).masked_fill(value >= 1.0, 1.0)

    def icdf(self, value: wt.Tensor) -> Any:
        outside, p = self._away()
        exact = ((-p + value * (2.0 * p - 1.0)).log1p() - (-p).log1p()) / (p.log() - (-p).log1p())
        return wt.where(outside, exact, value)

    def entropy(self) -> Any:
        log0, log1 = (-self.probs).log1p(), self.probs.log()
        return self.mean * (log0 - log1) - self._log_constant() - log0
