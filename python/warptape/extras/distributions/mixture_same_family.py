"""Mixtures of distributions of one family."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt

from . import constraints
from .categorical import Categorical
from .distribution import Distribution


class MixtureSameFamily(Distribution):
    """The components of `component_distribution`'s rightmost batch dim, mixed by a Categorical.

    Args:
        mixture_distribution: a Categorical over the components.
        component_distribution: with a batch dim of them.
        validate_args: whether values are checked.

    Raises: ValueError for distributions that do not fit together.

    >>> mix = torch.distributions.Categorical(torch.tensor([0.5, 0.5]))
    >>> parts = torch.distributions.Normal(torch.tensor([-1.0, 3.0]), torch.ones(2))
    >>> torch.distributions.MixtureSameFamily(mix, parts).mean
    tensor(1.)
    """

    mixture_distribution = property(attrgetter("_mixture_distribution"), doc="The Categorical that chooses.")
    component_distribution = property(attrgetter("_component_distribution"), doc="What it chooses from.")
    arg_constraints: Any = {}
    support = constraints.dependent_property(
        attrgetter("_component_distribution.support"), doc="Possible values."
    )

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(
                "The Mixture distribution needs to be an instance of torch.distributions.Categorical"
            )
        if not isinstance(component_distribution, Distribution):
            raise ValueError(
                "The Component distribution need to be an instance of torch.distributions.Distribution"
            )
        n = component_distribution.batch_shape[-1:]
        if n != mixture_distribution.param_shape[-1:]:
            raise ValueError(
                f"`mixture_distribution component` ({mixture_distribution.param_shape[-1]}) does not equal "
                f"`component_distribution.batch_shape[-1]` ({n[0] if n else None})"
            )
        self._mixture_distribution = mixture_distribution
        self._component_distribution = component_distribution
        super().__init__(
            component_distribution.batch_shape[:-1],
            component_distribution.event_shape,
            validate_args=validate_args,
        )

    def _expanded(self, batch_shape: Sequence[int]) -> dict[str, Any]:
        k = self._mixture_distribution.param_shape[-1]
        return {
            "_component_distribution": self._component_distribution.expand((*batch_shape, k)),
            "_mixture_distribution": self._mixture_distribution.expand(batch_shape),
        }

    def _over_events(self, x: wt.Tensor) -> Any:
        return x.reshape((*x.shape, *[1] * len(self.event_shape)))

    _at = property(lambda self: -1 - len(self.event_shape))

    @property
    def mean(self) -> Any:
        return (self._over_events(self.mixture_distribution.probs) * self.component_distribution.mean).sum(
            self._at
        )

    @property
    def variance(self) -> Any:
        """By the law of total variance."""
        probs = self._over_events(self.mixture_distribution.probs)
        parts = self.component_distribution
        spread = (parts.mean - self.mean.unsqueeze(self._at)).square()
        return (probs * (parts.variance + spread)).sum(self._at)

    def cdf(self, x: wt.Tensor) -> Any:
        parts = self.component_distribution.cdf(x.unsqueeze(self._at))
        return (parts * self.mixture_distribution.probs).sum(-1)

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        parts = self.component_distribution.log_prob(value.unsqueeze(self._at))
        return (parts + self.mixture_distribution.logits).logsumexp(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with wt.no_grad():
            chosen = self._over_events(self.mixture_distribution.sample(sample_shape).unsqueeze(-1))
            samples = self.component_distribution.sample(sample_shape)
            index = chosen.expand((*chosen.shape[: chosen.dim() - len(self.event_shape)], *self.event_shape))
            return samples.gather(self._at, index).squeeze(self._at)

    def __repr__(self) -> str:
        return f"MixtureSameFamily(\n  {self.mixture_distribution},\n  {self.component_distribution})"
