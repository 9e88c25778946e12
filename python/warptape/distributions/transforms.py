"""Differentiable maps between values, with the logarithm of the volume they stretch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import warptape
from warptape.nn import functional as F

from . import constraints
from .utils import sum_rightmost

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "ComposeTransform",
    "ExpTransform",
    "IndependentTransform",
    "LowerCholeskyTransform",
    "PowerTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StickBreakingTransform",
    "TanhTransform",
    "Transform",
    "biject_to",
    "identity_transform",
    "transform_to",
]


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
        self._cache_size = cache_size
        self._last: tuple[Any, Any] = (None, None)

    @property
    def inv(self) -> Transform:
        """The inverse map."""
        return _InverseTransform(self)

    def with_cache(self, cache_size: int = 1) -> Transform:
        """The same map with another cache size."""
        if self._cache_size == cache_size:
            return self
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__, _cache_size=cache_size, _last=(None, None))
        return new

    def __call__(self, x: Any) -> Any:
        if not self._cache_size:
            return self._call(x)
        if x is not self._last[0]:
            self._last = (x, self._call(x))
        return self._last[1]

    def _inv_call(self, y: Any) -> Any:
        if not self._cache_size:
            return self._inverse(y)
        if y is not self._last[1]:
            self._last = (self._inverse(y), y)
        return self._last[0]

    def _call(self, x: Any) -> Any:
        raise NotImplementedError

    def _inverse(self, y: Any) -> Any:
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log |dy/dx| for y = self(x), by event."""
        raise NotImplementedError

    def forward_shape(self, shape: Any) -> Any:
        """The shape of the result for arguments of a shape."""
        return shape

    def inverse_shape(self, shape: Any) -> Any:
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

    def __call__(self, x: Any) -> Any:
        return self._inv._inv_call(x)

    def _inv_call(self, y: Any) -> Any:
        return self._inv(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Any) -> Any:
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: Any) -> Any:
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
        return (
            _with_event_dims(self.parts[0].domain, self._event_dims()[0]) if self.parts else constraints.real
        )

    @property
    def codomain(self) -> Any:  # type: ignore[override]
        return (
            _with_event_dims(self.parts[-1].codomain, self._event_dims()[-1])
            if self.parts
            else constraints.real
        )

    @property
    def sign(self) -> Any:  # type: ignore[override]
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

    def __call__(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    def _inv_call(self, y: Any) -> Any:
        for part in reversed(self.parts):
            y = part._inv_call(y)
        return y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        if not self.parts:
            return warptape.zeros_like(x)
        total: Any = 0.0
        for part, dims in zip(self.parts, self._event_dims()):
            z = part(x)
            total = total + sum_rightmost(part.log_abs_det_jacobian(x, z), dims - part.domain.event_dim)
            x = z
        return total

    def forward_shape(self, shape: Any) -> Any:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: Any) -> Any:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.parts))})"


identity_transform = ComposeTransform([])


def _with_event_dims(constraint: Any, dims: int) -> Any:
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

    def _call(self, x: Any) -> Any:
        return self.base_transform(x)

    def _inverse(self, y: Any) -> Any:
        return self.base_transform._inv_call(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return sum_rightmost(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)


class ExpTransform(Transform):
    """exp(x)."""

    codomain = constraints.positive
    sign = +1

    def _call(self, x: Any) -> Any:
        return x.exp()

    def _inverse(self, y: Any) -> Any:
        return y.log()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return x


class PowerTransform(Transform):
    """x ** exponent, for positive x."""

    domain = codomain = constraints.positive
    sign = property(lambda self: self.exponent.sign())

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = (
            exponent if isinstance(exponent, warptape.Tensor) else warptape.tensor(float(exponent))
        )

    def _call(self, x: Any) -> Any:
        return x.pow(self.exponent)

    def _inverse(self, y: Any) -> Any:
        return y.pow(1 / self.exponent)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return (self.exponent * y / x).abs().log()


class SigmoidTransform(Transform):
    """sigmoid(x)."""

    codomain = constraints.unit_interval
    sign = +1

    def _call(self, x: Any) -> Any:
        eps = warptape.finfo(x.dtype)
        return warptape.sigmoid(x).clamp(min=eps.tiny, max=1.0 - eps.eps)

    def _inverse(self, y: Any) -> Any:
        eps = warptape.finfo(y.dtype)
        y = y.clamp(min=eps.tiny, max=1.0 - eps.eps)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -F.softplus(-x) - F.softplus(x)


class SoftplusTransform(Transform):
    """log(1 + exp(x))."""

    codomain = constraints.positive
    sign = +1

    def _call(self, x: Any) -> Any:
        return F.softplus(x)

    def _inverse(self, y: Any) -> Any:
        return (-y).expm1().neg().log() + y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -F.softplus(-x)


class TanhTransform(Transform):
    """tanh(x); use `cache_size=1` where its inverse is asked for, which loses digits near -1 and 1."""

    codomain = constraints.interval(-1.0, 1.0)
    sign = +1

    def _call(self, x: Any) -> Any:
        return x.tanh()

    def _inverse(self, y: Any) -> Any:
        return warptape.atanh(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        # log(1 - tanh(x)**2) without its cancellation.
        return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))


class AbsTransform(Transform):
    """abs(x), which is no bijection."""

    bijective = False
    codomain = constraints.positive

    def _call(self, x: Any) -> Any:
        return x.abs()

    def _inverse(self, y: Any) -> Any:
        return y


class AffineTransform(Transform):
    """loc + scale * x; with `event_dim` of rightmost dims as one event."""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self.event_dim = loc, scale, event_dim
        self.domain = self.codomain = _with_event_dims(constraints.real, event_dim)

    @property
    def sign(self) -> Any:  # type: ignore[override]
        return self.scale.sign() if isinstance(self.scale, warptape.Tensor) else math.copysign(1, self.scale)

    def _call(self, x: Any) -> Any:
        return self.loc + self.scale * x

    def _inverse(self, y: Any) -> Any:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        if isinstance(self.scale, warptape.Tensor):
            return sum_rightmost(self.scale.abs().log().expand(x.shape), self.event_dim)
        return sum_rightmost(warptape.full_like(x, math.log(abs(self.scale))), self.event_dim)


class SoftmaxTransform(Transform):
    """softmax along the last dim, which is no bijection."""

    bijective = False
    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Any) -> Any:
        return F.softmax(x, -1)

    def _inverse(self, y: Any) -> Any:
        return y.log()


class StickBreakingTransform(Transform):
    """K - 1 numbers to K shares: each takes a part of what is left (Stan manual, "Unit simplex")."""

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _offset(self, x: Any, n: int) -> Any:
        return x - warptape.arange(n, 0, -1, dtype=x.dtype, device=x.device).log()

    def _call(self, x: Any) -> Any:
        z = SigmoidTransform()(self._offset(x, x.shape[-1]))
        left = (1 - z).cumprod(-1)
        return F.pad(z, [0, 1], value=1.0) * F.pad(left, [1, 0], value=1.0)

    def _inverse(self, y: Any) -> Any:
        kept = y[..., :-1]
        left = (1 - kept.cumsum(-1)).clamp(min=warptape.finfo(y.dtype).tiny)
        x = kept.log() - left.log()
        return x + warptape.arange(x.shape[-1], 0, -1, dtype=x.dtype, device=x.device).log()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        x = self._offset(x, x.shape[-1])
        return (-x + F.logsigmoid(x) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Any) -> Any:
        return shape[:-1] + (shape[-1] + 1,)

    def inverse_shape(self, shape: Any) -> Any:
        return shape[:-1] + (shape[-1] - 1,)


class LowerCholeskyTransform(Transform):
    """Square matrices to lower triangular ones with a positive diagonal."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Any) -> Any:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: Any) -> Any:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


def transform_to(constraint: Any) -> Transform:
    """A map from unconstrained values to those of a constraint.

    Raises:
        NotImplementedError: for a constraint without one.
    """
    return _find(constraint, onto=True)


def biject_to(constraint: Any) -> Transform:
    """A bijection from unconstrained values to those of a constraint; errors as of `transform_to`."""
    return _find(constraint, onto=False)


def _find(constraint: Any, onto: bool) -> Transform:
    c = constraints
    if constraint is c.simplex:
        return SoftmaxTransform() if onto else StickBreakingTransform()
    if constraint is c.lower_cholesky:
        return LowerCholeskyTransform()
    if isinstance(constraint, c.independent):
        inner = _find(constraint.base_constraint, onto)
        return IndependentTransform(inner, constraint.reinterpreted_batch_ndims)
    if constraint is c.real:
        return identity_transform
    if isinstance(constraint, c.greater_than):
        if isinstance(constraint.lower_bound, (int, float)) and constraint.lower_bound == 0:
            return ExpTransform()
        return ComposeTransform([ExpTransform(), AffineTransform(constraint.lower_bound, 1)])
    if isinstance(constraint, c.less_than):
        return ComposeTransform([ExpTransform(), AffineTransform(constraint.upper_bound, -1)])
    if isinstance(constraint, c.interval) and not constraint.is_discrete:
        low, high = constraint.lower_bound, constraint.upper_bound
        if all(isinstance(bound, (int, float)) for bound in (low, high)) and (low, high) == (0, 1):
            return SigmoidTransform()
        return ComposeTransform([SigmoidTransform(), AffineTransform(low, high - low)])
    name = "transform_to" if onto else "biject_to"
    raise NotImplementedError(f"Cannot transform {constraint!r} constraints ({name})")
