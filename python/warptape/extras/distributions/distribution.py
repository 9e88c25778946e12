"""The base of all distributions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt

from . import constraints
from .utils import broadcast_all, check_either, lazy_property, logits_to_probs, probs_to_logits

__all__ = ["Distribution"]


class Distribution:
    """A batch of probability distributions.

    Args:
        batch_shape: shape of the batch of independent, not identical distributions.
        event_shape: shape of one sample of one of them.
        validate_args: check parameters and samples; by default as `set_default_validate_args` says.

    Raises:
        ValueError: a parameter that does not satisfy its constraint.
    """

    has_rsample = False
    has_enumerate_support = False
    arg_constraints: Any = {}
    support: Any = None
    _validate_args = __debug__

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Switches checks on or off for the distributions made from now on.

        Raises:
            ValueError: neither True nor False.
        """
        if value not in (True, False):
            raise ValueError(f"set_default_validate_args: expected True or False, got {value!r}")
        Distribution._validate_args = value

    def __init__(
        self,
        batch_shape: Sequence[int] = (),
        event_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        self._batch_shape = wt.Size(batch_shape)
        self._event_shape = wt.Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._check_parameters()
        super().__init__()  # of a Module, where a distribution is one too

    def _warn_of_missing(self, name: str) -> None:
        warnings.warn(
            f"{type(self)} does not define `{name}`, by which arguments are checked. Define it, or make the "
            "distribution with `validate_args=False`.",
            stacklevel=4,
        )

    def _check_parameters(self) -> None:
        if self.arg_constraints is Distribution.arg_constraints:
            self._warn_of_missing("arg_constraints")
        for name, constraint in self.arg_constraints.items():
            if constraints.is_dependent(constraint):
                continue
            if name not in self.__dict__ and isinstance(getattr(type(self), name, None), lazy_property):
                continue  # derived from the one that was given
            value = getattr(self, name)
            if not constraint.check(value).all():
                raise ValueError(
                    f"Expected parameter {name} ({type(value).__name__} of shape {tuple(value.shape)}) of "
                    f"distribution {self!r} to satisfy the constraint {constraint!r}, "
                    f"but found invalid values:\n{value}"
                )

    def expand(self, batch_shape: Sequence[int], _instance: Distribution | None = None) -> Any:
        """The same distributions with a batch expanded to `batch_shape`, as views of the parameters.

        Args:
            batch_shape: as of Tensor.expand.
            _instance: an object of a subclass to fill.
        """
        new = type(self).__new__(type(self)) if _instance is None else _instance
        batch_shape = wt.Size(batch_shape)
        new.__dict__.update(vars(self), _batch_shape=batch_shape, **self._expanded(batch_shape))
        return new

    def _get_checked_instance(self, cls: type, _instance: Distribution | None = None) -> Any:
        """A bare object for expand() of `cls`; a derived class with other arguments must have its own."""
        kind: Any = type(self)
        base: Any = cls
        if _instance is None and kind.__init__ is not base.__init__:
            raise NotImplementedError(
                f"Subclass {kind.__name__} of {cls.__name__} that defines a custom __init__ method must also "
                "define a custom .expand() method."
            )
        return type(self).__new__(type(self)) if _instance is None else _instance

    def _expanded(self, batch_shape: Sequence[int]) -> dict[str, Any]:
        """The attributes that have the batch's shape, tensors and other distributions, expanded."""
        parameters, n = {}, len(self._batch_shape)
        for name, value in vars(self).items():
            if isinstance(value, wt.Tensor) and value.shape[:n] == self._batch_shape:
                parameters[name] = value.expand((*batch_shape, *value.shape[n:]))
            elif isinstance(value, Distribution):
                parameters[name] = value.expand(batch_shape)
        return parameters

    batch_shape = property(attrgetter("_batch_shape"), doc="Shape over which parameters are batched.")
    event_shape = property(attrgetter("_event_shape"), doc="Shape of one sample, without batch.")

    @property
    def mean(self) -> Any:
        """The mean."""
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    @property
    def mode(self) -> Any:
        """The most probable value."""
        raise NotImplementedError(f"{type(self).__name__} does not implement mode")

    @property
    def variance(self) -> Any:
        """The variance."""
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    @property
    def stddev(self) -> Any:
        """The standard deviation."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Samples of shape sample_shape + batch_shape + event_shape, cut off from the parameters.

        >>> torch.distributions.Normal(torch.zeros(3), 1.0).sample((2,)).shape
        torch.Size([2, 3])
        """
        with wt.no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Samples through which gradients reach the parameters.

        Args:
            sample_shape: leading dims of the result.

        Raises: NotImplementedError where there is no such way.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement rsample")

    def sample_n(self, n: int) -> Any:
        """Deprecated: `sample((n,))`.

        Args:
            n: how many.
        """
        warnings.warn("sample_n will be deprecated. Use .sample((n,)) instead", UserWarning, stacklevel=2)
        return self.sample((n,))

    def log_prob(self, value: wt.Tensor) -> Any:
        """The logarithm of the density or probability at `value`.

        >>> torch.distributions.Normal(0.0, 1.0).log_prob(torch.tensor(0.0))
        tensor(-0.9189)
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement log_prob")

    def cdf(self, value: wt.Tensor) -> Any:
        """The probability of at most `value`.

        Args:
            value: of a shape that broadcasts.

        Raises: NotImplementedError where it has no formula here.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement cdf")

    def icdf(self, value: wt.Tensor) -> Any:
        """The inverse of cdf.

        Args:
            value: probabilities.

        Raises: NotImplementedError where it has no formula here.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement icdf")

    def enumerate_support(self, expand: bool = True) -> Any:
        """All values of a discrete distribution, along a new first dim.

        Args:
            expand: whether they are repeated over the batch.

        Raises: NotImplementedError where they cannot be listed.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement enumerate_support")

    def entropy(self) -> Any:
        """The entropy, in nats.

        >>> torch.distributions.Bernoulli(torch.tensor(0.5)).entropy()
        tensor(0.6931)
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement entropy")

    def perplexity(self) -> Any:
        """exp of the entropy."""
        return self.entropy().exp()

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Any:
        return wt.Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _validate_sample(self, value: wt.Tensor) -> None:
        """ValueError for a value that is no sample of this; nothing when checks are off."""
        if not self._validate_args:
            return
        if not isinstance(value, wt.Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        start = value.dim() - len(self._event_shape)
        if start < 0 or value.shape[start:] != self._event_shape:
            raise ValueError(
                "The right-most size of value must match event_shape: "
                f"{tuple(value.shape)} vs {tuple(self._event_shape)}."
            )
        for i, j in zip(reversed(value.shape), reversed(self._batch_shape + self._event_shape)):
            if 1 != i != j != 1:
                raise ValueError(
                    "Value is not broadcastable with batch_shape+event_shape: "
                    f"{tuple(value.shape)} vs {tuple(self._batch_shape + self._event_shape)}."
                )
        support = self.support
        if support is None:
            self._warn_of_missing("support")
        if support is None or constraints.is_dependent(support):
            return
        if not support.check(value).all():
            raise ValueError(
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) to be "
                f"within the support ({support!r}) of the distribution {self!r}, "
                f"but found invalid values:\n{value}"
            )

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}: {value if value.numel() == 1 else value.size()}"
            for name, value in ((n, vars(self)[n]) for n in self.arg_constraints if n in vars(self))
        )
        return f"{type(self).__name__}({shown})"


class ExponentialFamily(Distribution):
    """A base that tells distributions of the exponential family apart.

    Libraries ask isinstance().
    """


class LocationScale(Distribution):
    """A base of those over all real numbers whose parameters are `loc`, the mode, and `scale`.

    Args:
        loc, scale: of shapes that broadcast.
        validate_args: whether parameters and values are checked.
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    mode = property(attrgetter("loc"))

    def __init__(
        self, loc: wt.Tensor | float, scale: wt.Tensor | float, validate_args: bool | None = None
    ) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)


class ProbsOrLogits(Distribution):
    """A base of those with a probability `probs` or its log-odds `logits`; one is derived from the other.

    A subclass calls `_take` in its constructor.
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def _take(
        self, probs: wt.Tensor | float | None, logits: wt.Tensor | float | None, *others: Any
    ) -> list[Any]:
        """Keeps the one that is given; returns `others`, broadcast with it."""
        check_either(probs, logits)
        self._param, *others_ = broadcast_all(logits if probs is None else probs, *others)
        setattr(self, "logits" if probs is None else "probs", self._param)
        return others_

    @lazy_property
    def logits(self) -> Any:
        return probs_to_logits(self.probs, is_binary=True)

    @lazy_property
    def probs(self) -> Any:
        return logits_to_probs(self.logits, is_binary=True)

    param_shape = property(attrgetter("_param.shape"), doc="Shape of `probs`.")
