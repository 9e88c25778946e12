"""Bernoulli and categorical distributions made continuous, so that gradients pass: Maddison, Mnih and Teh,
"The concrete distribution"; Jang, Gu and Poole, "Categorical reparameterization with Gumbel-softmax"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt

from . import constraints
from .bernoulli import Bernoulli
from .categorical import Categorical
from .distribution import Distribution
from .transformed_distribution import TransformedDistribution
from .transforms import ExpTransform, SigmoidTransform, Transform
from .utils import broadcast_all, clamp_probs


class _Logit(Distribution):
    """A base over unbounded values, with the parameters of a discrete distribution."""

    has_rsample = True
    logits = property(attrgetter("_discrete.logits"), doc="The discrete distribution's.")
    probs = property(attrgetter("_discrete.probs"), doc="The discrete distribution's.")

    _kind: Callable[..., Bernoulli | Categorical]  # the class of the discrete distribution

    def __init__(
        self,
        temperature: wt.Tensor | float,
        probs: wt.Tensor | float | None = None,
        logits: wt.Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.temperature, self._discrete = temperature, self._kind(probs, logits)
        batch = self._discrete.batch_shape
        super().__init__(batch, self._discrete.param_shape[len(batch) :], validate_args=validate_args)

    def _expanded(self, batch_shape: Sequence[int]) -> dict[str, Any]:
        return {"_discrete": self._discrete.expand(batch_shape)}

    def _uniform(self, shape: Sequence[int]) -> Any:
        return clamp_probs(wt.rand(shape, dtype=self.logits.dtype, device=self.logits.device))


class LogitRelaxedBernoulli(_Logit):
    """The logit of `RelaxedBernoulli`.

    From Maddison et al., "The Concrete Distribution" (2016).
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.real
    _kind = Bernoulli

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        u = self._uniform(self._extended_shape(sample_shape))
        return (u.log() - (-u).log1p() + self.logits) / self.temperature

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        away = logits - value * self.temperature
        return wt.as_tensor(self.temperature, dtype=away.dtype).log() + away - 2 * away.exp().log1p()


class ExpRelaxedCategorical(_Logit):
    """The logarithm of `RelaxedOneHotCategorical`.

    From Maddison et al., "The Concrete Distribution" (2016).
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.real_vector
    _kind = Categorical

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        gumbels = -(-self._uniform(self._extended_shape(sample_shape)).log()).log()
        scores = (self.logits + gumbels) / self.temperature
        return scores - scores.logsumexp(-1, keepdim=True)

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        k = self.event_shape[0]
        logits, value = broadcast_all(self.logits, value)
        t = wt.as_tensor(self.temperature, dtype=value.dtype)
        scale = wt.lgamma(wt.tensor(float(k), dtype=value.dtype)) + (k - 1) * t.log()
        score = logits - value * t
        return (score - score.logsumexp(-1, keepdim=True)).sum(-1) + scale


class _Relaxed(TransformedDistribution):
    """The values, of which `_base` gives the logit or the logarithm."""

    _base: type[_Logit]
    _transform: type[Transform]
    temperature = property(attrgetter("base_dist.temperature"), doc="How far from discrete; 0 is discrete.")
    logits = property(attrgetter("base_dist.logits"), doc="The discrete distribution's.")
    probs = property(attrgetter("base_dist.probs"), doc="The discrete distribution's.")

    def __init__(
        self,
        temperature: wt.Tensor | float,
        probs: wt.Tensor | float | None = None,
        logits: wt.Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(self._base(temperature, probs, logits), self._transform(), validate_args)


class RelaxedBernoulli(_Relaxed):
    """Values in (0, 1), near 0 and 1 at a low `temperature`.

    Gradients reach the parameters through its samples (Maddison et al., "The Concrete Distribution", 2016).

    >>> torch.distributions.RelaxedBernoulli(torch.tensor(0.5), torch.tensor([0.3, 0.7])).rsample().shape
    torch.Size([2])
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval
    _base, _transform = LogitRelaxedBernoulli, SigmoidTransform


class RelaxedOneHotCategorical(_Relaxed):
    """Vectors on the simplex, near one-hot at a low `temperature`.

    Gradients reach the parameters through its samples (Jang et al., "Categorical Reparameterization with
    Gumbel-Softmax", 2016).

    >>> torch.distributions.RelaxedOneHotCategorical(torch.tensor(0.5), torch.ones(4)).rsample().shape
    torch.Size([4])
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.simplex
    _base, _transform = ExpRelaxedCategorical, ExpTransform
