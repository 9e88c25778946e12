"""The categorical distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt

from . import constraints
from .distribution import Distribution
from .utils import check_either, lazy_property, logits_to_probs, probs_to_logits


class Categorical(Distribution):
    """Over 0 … K - 1, from `probs` (normalised here) or `logits` of shape (*, K).

    >>> d = torch.distributions.Categorical(probs=torch.tensor([0.25, 0.75]))
    >>> d.log_prob(torch.tensor(1))
    tensor(-0.2877)
    >>> d.sample((2,)).shape
    torch.Size([2])
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support = True

    def __init__(
        self,
        probs: wt.Tensor | None = None,
        logits: wt.Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        check_either(probs, logits)
        parameter: Any = logits if probs is None else probs
        if parameter.dim() < 1:
            raise ValueError(
                f"`{'logits' if probs is None else 'probs'}` parameter must be at least one-dimensional."
            )
        if probs is not None:
            self.probs = parameter / parameter.sum(-1, keepdim=True)
        else:
            self.logits = parameter - parameter.logsumexp(dim=-1, keepdim=True)
        self._param = self.logits if probs is None else self.probs
        super().__init__(self._param.shape[:-1], validate_args=validate_args)

    _num_events = property(lambda self: self._param.shape[-1])
    support = constraints.dependent_property(
        lambda self: constraints.integer_interval(0, self._num_events - 1),
        is_discrete=True,
        event_dim=0,
        doc="Possible values.",
    )

    @lazy_property
    def logits(self) -> Any:
        return probs_to_logits(self.probs)

    @lazy_property
    def probs(self) -> Any:
        return logits_to_probs(self.logits)

    param_shape = property(attrgetter("_param.shape"), doc="Shape of `probs`.")
    mean = property(lambda self: self.probs.new_full(self._extended_shape(), math.nan))
    variance = mean
    mode = property(lambda self: self.probs.argmax(dim=-1))

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        n = math.prod(sample_shape)
        with wt.no_grad():
            flat = wt.multinomial(self.probs.reshape(-1, self._num_events), n, True).T
            return flat.reshape(self._extended_shape(sample_shape))

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        value, logits = wt.broadcast_tensors(value.long().unsqueeze(-1), self.logits)
        return logits.gather(-1, value[..., :1]).squeeze(-1)

    def entropy(self) -> Any:
        # Probability 0 adds nothing, though its logarithm is -inf.
        logits = self.logits.clamp(min=wt.finfo(self.logits.dtype).min)
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Any:
        values = wt.arange(self._num_events, device=self._param.device)
        values = values.view((-1, *[1] * len(self._batch_shape)))
        return values.expand((-1, *self._batch_shape)) if expand else values


class OverCategorical(Distribution):
    """A base of those over vectors [K] that are made from a Categorical's draws.

    Args:
        probs, logits: one of them, (*, K).
        validate_args: whether parameters and values are checked.
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    probs = property(attrgetter("_categorical.probs"), doc="Probabilities, normalised.")
    logits = property(attrgetter("_categorical.logits"), doc="Log-probabilities.")
    param_shape = property(attrgetter("_categorical.param_shape"), doc="Shape of `probs`.")

    def __init__(
        self,
        probs: wt.Tensor | None = None,
        logits: wt.Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._categorical = Categorical(probs, logits)
        super().__init__(self.param_shape[:-1], self.param_shape[-1:], validate_args=validate_args)
