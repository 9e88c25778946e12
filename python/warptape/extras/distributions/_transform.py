"""What all transforms are made of: the base, its inverse, chains of them and more event dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from warptape import core as wt

from . import constraints
from .utils import sum_rightmost

__all__ = ["ComposeTransform", "IndependentTransform", "Transform", "identity_transform"]


class Transform:
    """A map from `domain` to `codomain`; `inv` is the way back.

    Args:
        cache_size: 1 keeps the last value, so that the inverse of what was just made is exact and free.
    """

    bijective = True
    sign: Any = None  # of the slope, where the map is monotone
    domain: Any = constraints.real
    codomain: Any = constraints.real

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        super().__init__()  # of a Module, where a transform is one too
        self._cache_size = cache_size
        self._cached_x_y: tuple[Any, Any] = (None, None)

    @property
    def inv(self) -> Transform:
        """The inverse map."""
        return _InverseTransform(self)

    def with_cache(self, cache_size: int = 1) -> Transform:
        """The same map with another cache size."""
        if self._cache_size == cache_size:
            return self
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__, _cache_size=cache_size, _cached_x_y=(None, None))
        return new

    def __call__(self, x: wt.Tensor) -> Any:
        if not self._cache_size:
            return self._call(x)
        if x is not self._cached_x_y[0]:
            self._cached_x_y = (x, self._call(x))
        return self._cached_x_y[1]

    def _inv_call(self, y: wt.Tensor) -> Any:
        if not self._cache_size:
            return self._inverse(y)
        if y is not self._cached_x_y[1]:
            self._cached_x_y = (self._inverse(y), y)
        return self._cached_x_y[0]

    def _call(self, x: wt.Tensor) -> Any:
        raise NotImplementedError

    def _inverse(self, y: wt.Tensor) -> Any:
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        """log |dy/dx| for y = self(x), by event."""
        raise NotImplementedError

    @property
    def event_dim(self) -> int:
        """How many rightmost dims an event has, where the map leaves that as it is."""
        if self.domain.event_dim != self.codomain.event_dim:
            raise ValueError("Please use either .domain.event_dim or .codomain.event_dim")
        return self.domain.event_dim

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        """The shape of the result for arguments of a shape."""
        return shape

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        """The shape of the argument for results of a shape."""
        return shape

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _InverseTransform(Transform):
    domain = property(attrgetter("_inv.codomain"))
    codomain = property(attrgetter("_inv.domain"))
    inv = property(attrgetter("_inv"))

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self._inv = transform
        self.bijective, self.sign = transform.bijective, transform.sign

    def __call__(self, x: wt.Tensor) -> Any:
        return self._inv._inv_call(x)

    def _inv_call(self, y: wt.Tensor) -> Any:
        return self._inv(y)

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        return self._inv.forward_shape(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inv!r})"


class ComposeTransform(Transform):
    """One map after the other."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else list(parts)
        self.bijective = all(part.bijective for part in parts)

    @property
    def domain(self) -> Any:  # type: ignore[override]
        """The first part's domain, over all dims of the event."""
        return (
            with_event_dims(self.parts[0].domain, self._event_dims()[0]) if self.parts else constraints.real
        )

    @property
    def codomain(self) -> Any:  # type: ignore[override]
        """The last part's codomain, over all dims of the event."""
        return (
            with_event_dims(self.parts[-1].codomain, self._event_dims()[-1])
            if self.parts
            else constraints.real
        )

    @property
    def sign(self) -> Any:  # type: ignore[override]
        """The product of the parts' signs."""
        return math.prod(part.sign for part in self.parts)

    def _event_dims(self) -> list[int]:
        """The event's dims before each part and after the last; a part of few is applied over many."""
        dims = [part.domain.event_dim for part in self.parts]
        dims.append(self.parts[-1].codomain.event_dim)
        changes = [part.codomain.event_dim - part.domain.event_dim for part in self.parts]
        for i, change in enumerate(changes):
            dims[i + 1] = max(dims[i + 1], dims[i] + change)
        for i in reversed(range(len(self.parts))):
            dims[i] = max(dims[i], dims[i + 1] - changes[i])
        return dims

    def __call__(self, x: wt.Tensor) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    def _inv_call(self, y: wt.Tensor) -> Any:
        for part in reversed(self.parts):
            y = part._inv_call(y)
        return y

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        if not self.parts:
            return wt.zeros_like(x)
        total: Any = 0.0
        for part, dims in zip(self.parts, self._event_dims()):
            z = part(x)
            total = total + sum_rightmost(part.log_abs_det_jacobian(x, z), dims - part.domain.event_dim)
            x = z
        return total

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    def __repr__(self) -> str:
        parts = ",\n    ".join(map(repr, self.parts))
        return f"{type(self).__name__}(\n    {parts}\n)"


identity_transform: Transform = ComposeTransform([])


def with_event_dims(constraint: constraints.Constraint, dims: int) -> Any:
    more = dims - constraint.event_dim
    return constraints.independent(constraint, more) if more > 0 else constraint


class IndependentTransform(Transform):
    """Another map, of which the `reinterpreted_batch_ndims` rightmost batch dims belong to the event."""

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims
        self.domain = constraints.independent(base_transform.domain, reinterpreted_batch_ndims)
        self.codomain = constraints.independent(base_transform.codomain, reinterpreted_batch_ndims)
        self.bijective, self.sign = base_transform.bijective, base_transform.sign

    def _call(self, x: wt.Tensor) -> Any:
        return self.base_transform(x)

    def _inverse(self, y: wt.Tensor) -> Any:
        return self.base_transform._inv_call(y)

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        return sum_rightmost(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_transform!r}, {self.reinterpreted_batch_ndims})"
