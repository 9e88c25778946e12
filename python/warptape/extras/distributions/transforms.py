"""Differentiable maps between values, with the logarithm of the volume they stretch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import warptape
from warptape.nn import functional as F

from . import constraints
from ._transform import ComposeTransform, IndependentTransform, Transform, identity_transform, with_event_dims
from .utils import sum_rightmost, tril_matrix_to_vec, vec_to_tril_matrix

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "CatTransform",
    "ComposeTransform",
    "CorrCholeskyTransform",
    "CumulativeDistributionTransform",
    "ExpTransform",
    "IndependentTransform",
    "LowerCholeskyTransform",
    "PositiveDefiniteTransform",
    "PowerTransform",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StackTransform",
    "StickBreakingTransform",
    "TanhTransform",
    "Transform",
    "identity_transform",
]


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
    sign = property(lambda self: self.exponent.sign(), doc="1 where the map rises, -1 where it falls.")

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


def _clipped_sigmoid(x: Any) -> Any:
    """sigmoid(x), neither 0 nor 1."""
    eps = warptape.finfo(x.dtype)
    return warptape.sigmoid(x).clamp(min=eps.tiny, max=1.0 - eps.eps)


class SigmoidTransform(Transform):
    """sigmoid(x)."""

    codomain = constraints.unit_interval
    sign = +1

    def _call(self, x: Any) -> Any:
        return _clipped_sigmoid(x)

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
        self.loc, self.scale, self._event_dim = loc, scale, event_dim
        self.domain = self.codomain = with_event_dims(constraints.real, event_dim)

    @property
    def sign(self) -> Any:  # type: ignore[override]
        """1 where the map rises, -1 where it falls: the sign of `scale`."""
        return self.scale.sign() if isinstance(self.scale, warptape.Tensor) else math.copysign(1, self.scale)

    def _call(self, x: Any) -> Any:
        return self.loc + self.scale * x

    def _inverse(self, y: Any) -> Any:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        if isinstance(self.scale, warptape.Tensor):
            return sum_rightmost(self.scale.abs().log().expand(x.shape), self._event_dim)
        return sum_rightmost(warptape.full_like(x, math.log(abs(self.scale))), self._event_dim)


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

    bijective = False
    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Any) -> Any:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: Any) -> Any:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class ReshapeTransform(Transform):
    """The rightmost dims of `in_shape` as dims of `out_shape`."""

    def __init__(self, in_shape: Any, out_shape: Any, cache_size: int = 0) -> None:
        self.in_shape, self.out_shape = warptape.Size(in_shape), warptape.Size(out_shape)
        if self.in_shape.numel() != self.out_shape.numel():
            raise ValueError("in_shape, out_shape have different numbers of elements")
        self.domain = constraints.independent(constraints.real, len(self.in_shape))
        self.codomain = constraints.independent(constraints.real, len(self.out_shape))
        super().__init__(cache_size)

    def _call(self, x: Any) -> Any:
        return x.reshape(x.shape[: x.dim() - len(self.in_shape)] + self.out_shape)

    def _inverse(self, y: Any) -> Any:
        return y.reshape(y.shape[: y.dim() - len(self.out_shape)] + self.in_shape)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return x.new_zeros(x.shape[: x.dim() - len(self.in_shape)])

    def forward_shape(self, shape: Any) -> Any:
        return self._reshaped(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Any) -> Any:
        return self._reshaped(shape, self.out_shape, self.in_shape)

    def _reshaped(self, shape: Any, old: Any, new: Any) -> Any:
        cut = len(shape) - len(old)
        if cut < 0 or shape[cut:] != old:
            raise ValueError(f"Shape mismatch: expected {tuple(shape)} to end in {tuple(old)}")
        return shape[:cut] + new


class CorrCholeskyTransform(Transform):
    """Vectors of D (D - 1) / 2 elements to Cholesky factors of D x D correlation matrices, row by row.

    tanh of the elements are partial correlations, by which a row's unit length is broken like a stick.
    """

    domain = constraints.real_vector
    codomain = constraints.corr_cholesky

    def _call(self, x: Any) -> Any:
        eps = warptape.finfo(x.dtype).eps
        partial = vec_to_tril_matrix(x.tanh().clamp(min=-1 + eps, max=1 - eps), -1)
        left = (1 - partial.square()).sqrt().cumprod(-1)
        eye = warptape.eye(partial.shape[-1], dtype=x.dtype, device=x.device)
        return (partial + eye) * F.pad(left[..., :-1], [1, 0], value=1.0)

    def _inverse(self, y: Any) -> Any:
        left = F.pad((1 - y.square().cumsum(-1))[..., :-1], [1, 0], value=1.0)
        partial = tril_matrix_to_vec(y, -1) / tril_matrix_to_vec(left, -1).sqrt()
        return (partial.log1p() - (-partial).log1p()) / 2

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        left = tril_matrix_to_vec(1 - y.square().cumsum(-1), -2)
        tanh = x + F.softplus(-2 * x) - math.log(2.0)
        return 0.5 * left.log().sum(-1) - 2 * tanh.sum(-1)

    def forward_shape(self, shape: Any) -> Any:
        size = round((0.25 + 2 * shape[-1]) ** 0.5 + 0.5)
        if size * (size - 1) // 2 != shape[-1]:
            raise ValueError("Input is not a flattened lower-diagonal number")
        return shape[:-1] + (size, size)

    def inverse_shape(self, shape: Any) -> Any:
        if len(shape) < 2 or shape[-2] != shape[-1]:
            raise ValueError("Input is not square")
        return shape[:-2] + (shape[-1] * (shape[-1] - 1) // 2,)


class PositiveDefiniteTransform(Transform):
    """Square matrices to positive definite ones, by their Cholesky factors."""

    bijective = False
    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite

    def _call(self, x: Any) -> Any:
        root = LowerCholeskyTransform()(x)
        return root @ root.mT

    def _inverse(self, y: Any) -> Any:
        return LowerCholeskyTransform().inv(warptape.linalg.cholesky(y))


class CumulativeDistributionTransform(Transform):
    """The cdf of a distribution."""

    codomain = constraints.unit_interval
    sign = +1

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution
        self.domain = distribution.support

    def _call(self, x: Any) -> Any:
        return self.distribution.cdf(x)

    def _inverse(self, y: Any) -> Any:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return self.distribution.log_prob(x)


class _Parts(Transform):
    """What `CatTransform` and `StackTransform` share: a map for each part along `dim`."""

    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int) -> None:
        super().__init__(cache_size)
        self.transforms = [t.with_cache(cache_size) for t in tseq] if cache_size else list(tseq)
        self.dim = dim
        self.bijective = all(t.bijective for t in self.transforms)

    def _split(self, x: Any) -> Any:
        raise NotImplementedError

    def _join(self, parts: Any) -> Any:
        raise NotImplementedError

    def _call(self, x: Any) -> Any:
        return self._join([t(part) for t, part in zip(self.transforms, self._split(x))])

    def _inverse(self, y: Any) -> Any:
        return self._join([t.inv(part) for t, part in zip(self.transforms, self._split(y))])


class CatTransform(_Parts):
    """Maps of parts of these lengths along a dim."""

    def __init__(
        self, tseq: Sequence[Transform], dim: int = 0, lengths: Any = None, cache_size: int = 0
    ) -> None:
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)

    domain = property(
        lambda self: constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths),
        doc="The transforms' domains, joined along `dim`.",
    )
    codomain = property(
        lambda self: constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths),
        doc="The transforms' codomains, joined along `dim`.",
    )

    def _split(self, x: Any) -> Any:
        return x.split(self.lengths, self.dim)

    def _join(self, parts: Any) -> Any:
        return warptape.cat(parts, self.dim)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        events = max(t.domain.event_dim for t in self.transforms)
        found = []
        for t, a, b in zip(self.transforms, self._split(x), self._split(y)):
            stretch = t.log_abs_det_jacobian(a, b)
            found.append(sum_rightmost(stretch, events - t.domain.event_dim))
        dim = self.dim - x.dim() if self.dim >= 0 else self.dim
        # a dim of the event is summed over, others stay
        return warptape.cat(found, dim + events) if dim + events < 0 else sum(found)


class StackTransform(_Parts):
    """Maps of the places along a dim."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)

    domain = property(
        lambda self: constraints.stack([t.domain for t in self.transforms], self.dim),
        doc="The transforms' domains, stacked along `dim`.",
    )
    codomain = property(
        lambda self: constraints.stack([t.codomain for t in self.transforms], self.dim),
        doc="The transforms' codomains, stacked along `dim`.",
    )

    def _split(self, x: Any) -> Any:
        return x.unbind(self.dim)

    def _join(self, parts: Any) -> Any:
        return warptape.stack(parts, self.dim)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        parts = zip(self.transforms, self._split(x), self._split(y))
        return self._join([t.log_abs_det_jacobian(a, b) for t, a, b in parts])
