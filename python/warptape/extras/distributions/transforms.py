"""Differentiable maps between values, with the logarithm of the volume they stretch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core.namespaces import linalg
from warptape.nn import functional as F

from . import constraints
from ._transform import ComposeTransform, IndependentTransform, Transform, identity_transform, with_event_dims
from .utils import sum_rightmost, tril_matrix_to_vec, vec_to_tril_matrix

if TYPE_CHECKING:
    from .distribution import Distribution

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
    """exp(x).

    From real to positive numbers.

    >>> torch.distributions.ExpTransform().inv(torch.tensor(1.0))
    tensor(0.)
    """

    codomain = constraints.positive
    sign = +1

    def _call(self, x: wt.Tensor) -> Any:
        return x.exp()

    def _inverse(self, y: wt.Tensor) -> Any:
        return y.log()

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        return x


class PowerTransform(Transform):
    """x ** exponent, for positive x.

    Args:
        exponent: not 0.
        cache_size: 1 keeps the last pair of values.
    """

    domain = codomain = constraints.positive
    sign = property(lambda self: self.exponent.sign(), doc="1 where the map rises, -1 where it falls.")

    def __init__(self, exponent: wt.Tensor | float, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent if isinstance(exponent, wt.Tensor) else wt.tensor(float(exponent))

    def _call(self, x: wt.Tensor) -> Any:
        return x.pow(self.exponent)

    def _inverse(self, y: wt.Tensor) -> Any:
        return y.pow(1 / self.exponent)

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        return (self.exponent * y / x).abs().log()


def _clipped_sigmoid(x: wt.Tensor) -> Any:
    """sigmoid(x), neither 0 nor 1."""
    eps = wt.finfo(x.dtype)
    return wt.sigmoid(x).clamp(min=eps.tiny, max=1.0 - eps.eps)


class SigmoidTransform(Transform):
    """sigmoid(x).

    From real numbers to (0, 1).
    """

    codomain = constraints.unit_interval
    sign = +1

    def _call(self, x: wt.Tensor) -> Any:
        return _clipped_sigmoid(x)

    def _inverse(self, y: wt.Tensor) -> Any:
        eps = wt.finfo(y.dtype)
        y = y.clamp(min=eps.tiny, max=1.0 - eps.eps)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        return -F.softplus(-x) - F.softplus(x)


class SoftplusTransform(Transform):
    """log(1 + exp(x)).

    From real to positive numbers.
    """

    codomain = constraints.positive
    sign = +1

    def _call(self, x: wt.Tensor) -> Any:
        return F.softplus(x)

    def _inverse(self, y: wt.Tensor) -> Any:
        return (-y).expm1().neg().log() + y

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        return -F.softplus(-x)


class TanhTransform(Transform):
    """tanh(x); use `cache_size=1` where its inverse is asked for, which loses digits near -1 and 1."""

    codomain = constraints.interval(-1.0, 1.0)
    sign = +1

    def _call(self, x: wt.Tensor) -> Any:
        return x.tanh()

    def _inverse(self, y: wt.Tensor) -> Any:
        return wt.atanh(y)

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        # log(1 - tanh(x)**2) without its cancellation.
        return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))


class AbsTransform(Transform):
    """abs(x), which is no bijection."""

    bijective = False
    codomain = constraints.positive

    def _call(self, x: wt.Tensor) -> Any:
        return x.abs()

    def _inverse(self, y: wt.Tensor) -> Any:
        return y


class AffineTransform(Transform):
    """loc + scale * x; with `event_dim` of rightmost dims as one event.

    Args:
        loc, scale: numbers or tensors.
        event_dim: how many dims.
        cache_size: 1 keeps the last pair of values.

    >>> torch.distributions.AffineTransform(1.0, 2.0)(torch.tensor(3.0))
    tensor(7.)
    """

    def __init__(
        self, loc: wt.Tensor | float, scale: wt.Tensor | float, event_dim: int = 0, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim
        self.domain = self.codomain = with_event_dims(constraints.real, event_dim)

    @property
    def sign(self) -> Any:  # type: ignore[override]
        """1 where the map rises, -1 where it falls: the sign of `scale`."""
        return self.scale.sign() if isinstance(self.scale, wt.Tensor) else math.copysign(1, self.scale)

    def _call(self, x: wt.Tensor) -> Any:
        return self.loc + self.scale * x

    def _inverse(self, y: wt.Tensor) -> Any:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        if isinstance(self.scale, wt.Tensor):
            return sum_rightmost(self.scale.abs().log().expand(x.shape), self._event_dim)
        return sum_rightmost(wt.full_like(x, math.log(abs(self.scale))), self._event_dim)


class SoftmaxTransform(Transform):
    """softmax along the last dim, which is no bijection."""

    bijective = False
    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: wt.Tensor) -> Any:
        return F.softmax(x, -1)

    def _inverse(self, y: wt.Tensor) -> Any:
        return y.log()


class StickBreakingTransform(Transform):
    """K - 1 numbers to K shares: each takes a part of what is left (Stan manual, "Unit simplex").

    From real vectors to the simplex.

    >>> torch.distributions.StickBreakingTransform()(torch.zeros(1))
    tensor([0.5000, 0.5000])
    """

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _offset(self, x: wt.Tensor, n: int) -> Any:
        return x - wt.arange(n, 0, -1, dtype=x.dtype, device=x.device).log()

    def _call(self, x: wt.Tensor) -> Any:
        z = SigmoidTransform()(self._offset(x, x.shape[-1]))
        left = (1 - z).cumprod(-1)
        return F.pad(z, [0, 1], value=1.0) * F.pad(left, [1, 0], value=1.0)

    def _inverse(self, y: wt.Tensor) -> Any:
        kept = y[..., :-1]
        left = (1 - kept.cumsum(-1)).clamp(min=wt.finfo(y.dtype).tiny)
        x = kept.log() - left.log()
        return x + wt.arange(x.shape[-1], 0, -1, dtype=x.dtype, device=x.device).log()

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        x = self._offset(x, x.shape[-1])
        return (-x + F.logsigmoid(x) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        return shape[:-1] + (shape[-1] + 1,)

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        return shape[:-1] + (shape[-1] - 1,)


class LowerCholeskyTransform(Transform):
    """Square matrices to lower triangular ones with a positive diagonal.

    The diagonal goes through exp; what is above it is ignored.
    """

    bijective = False
    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: wt.Tensor) -> Any:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: wt.Tensor) -> Any:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class ReshapeTransform(Transform):
    """The rightmost dims of `in_shape` as dims of `out_shape`.

    Args:
        in_shape, out_shape: of the same number of elements.
        cache_size: 1 keeps the last pair of values.

    Raises: ValueError for different numbers of elements.
    """

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0) -> None:
        self.in_shape, self.out_shape = wt.Size(in_shape), wt.Size(out_shape)
        if self.in_shape.numel() != self.out_shape.numel():
            raise ValueError("in_shape, out_shape have different numbers of elements")
        self.domain = constraints.independent(constraints.real, len(self.in_shape))
        self.codomain = constraints.independent(constraints.real, len(self.out_shape))
        super().__init__(cache_size)

    def _call(self, x: wt.Tensor) -> Any:
        return x.reshape(x.shape[: x.dim() - len(self.in_shape)] + self.out_shape)

    def _inverse(self, y: wt.Tensor) -> Any:
        return y.reshape(y.shape[: y.dim() - len(self.out_shape)] + self.in_shape)

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        return x.new_zeros(x.shape[: x.dim() - len(self.in_shape)])

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        return self._reshaped(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        return self._reshaped(shape, self.out_shape, self.in_shape)

    def _reshaped(self, shape: tuple[int, ...], old: tuple[int, ...], new: tuple[int, ...]) -> Any:
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

    def _call(self, x: wt.Tensor) -> Any:
        eps = wt.finfo(x.dtype).eps
        partial = vec_to_tril_matrix(x.tanh().clamp(min=-1 + eps, max=1 - eps), -1)
        left = (1 - partial.square()).sqrt().cumprod(-1)
        eye = wt.eye(partial.shape[-1], dtype=x.dtype, device=x.device)
        return (partial + eye) * F.pad(left[..., :-1], [1, 0], value=1.0)

    def _inverse(self, y: wt.Tensor) -> Any:
        left = F.pad((1 - y.square().cumsum(-1))[..., :-1], [1, 0], value=1.0)
        partial = tril_matrix_to_vec(y, -1) / tril_matrix_to_vec(left, -1).sqrt()
        return (partial.log1p() - (-partial).log1p()) / 2

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        left = tril_matrix_to_vec(1 - y.square().cumsum(-1), -2)
        tanh = x + F.softplus(-2 * x) - math.log(2.0)
        return 0.5 * left.log().sum(-1) - 2 * tanh.sum(-1)

    def forward_shape(self, shape: tuple[int, ...]) -> Any:
        size = round((0.25 + 2 * shape[-1]) ** 0.5 + 0.5)
        if size * (size - 1) // 2 != shape[-1]:
            raise ValueError("Input is not a flattened lower-diagonal number")
        return shape[:-1] + (size, size)

    def inverse_shape(self, shape: tuple[int, ...]) -> Any:
        if len(shape) < 2 or shape[-2] != shape[-1]:
            raise ValueError("Input is not square")
        return shape[:-2] + (shape[-1] * (shape[-1] - 1) // 2,)


class PositiveDefiniteTransform(Transform):
    """Square matrices to positive definite ones, by their Cholesky factors.

    The factors are those of LowerCholeskyTransform.
    """

    bijective = False
    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite

    def _call(self, x: wt.Tensor) -> Any:
        root = LowerCholeskyTransform()(x)
        return root @ root.mT

    def _inverse(self, y: wt.Tensor) -> Any:
        return LowerCholeskyTransform().inv(linalg.cholesky(y))


class CumulativeDistributionTransform(Transform):
    """The cdf of a distribution.

    Args:
        distribution: over real numbers.
        cache_size: 1 keeps the last pair of values.
    """

    codomain = constraints.unit_interval
    sign = +1

    def __init__(self, distribution: Distribution, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution
        self.domain = distribution.support

    def _call(self, x: wt.Tensor) -> Any:
        return self.distribution.cdf(x)

    def _inverse(self, y: wt.Tensor) -> Any:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        return self.distribution.log_prob(x)


class _Parts(Transform):
    """What `CatTransform` and `StackTransform` share: a map for each part along `dim`."""

    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int) -> None:
        super().__init__(cache_size)
        self.transforms = [t.with_cache(cache_size) for t in tseq] if cache_size else list(tseq)
        self.dim = dim
        self.bijective = all(t.bijective for t in self.transforms)

    def _split(self, x: wt.Tensor) -> Any:
        raise NotImplementedError

    def _join(self, parts: Sequence[wt.Tensor]) -> Any:
        raise NotImplementedError

    def _call(self, x: wt.Tensor) -> Any:
        return self._join([t(part) for t, part in zip(self.transforms, self._split(x))])

    def _inverse(self, y: wt.Tensor) -> Any:
        return self._join([t.inv(part) for t, part in zip(self.transforms, self._split(y))])


class CatTransform(_Parts):
    """Maps of parts of these lengths along a dim.

    Args:
        tseq: a map for each part.
        dim: along which.
        lengths: of the parts; 1 each if None.
        cache_size: 1 keeps the last pair of values.
    """

    def __init__(
        self,
        tseq: Sequence[Transform],
        dim: int = 0,
        lengths: Sequence[int] | None = None,
        cache_size: int = 0,
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

    def _split(self, x: wt.Tensor) -> Any:
        return x.split(self.lengths, self.dim)

    def _join(self, parts: Sequence[wt.Tensor]) -> Any:
        return wt.cat(parts, self.dim)

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        events = max(t.domain.event_dim for t in self.transforms)
        terms = []
        for t, a, b in zip(self.transforms, self._split(x), self._split(y)):
            stretch = t.log_abs_det_jacobian(a, b)
            terms.append(sum_rightmost(stretch, events - t.domain.event_dim))
        dim = self.dim - x.dim() if self.dim >= 0 else self.dim
        # a dim of the event is summed over, others stay
        return wt.cat(terms, dim + events) if dim + events < 0 else sum(terms)


class StackTransform(_Parts):
    """Maps of the places along a dim.

    Args:
        tseq: a map for each place.
        dim: along which.
        cache_size: 1 keeps the last pair of values.
    """

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

    def _split(self, x: wt.Tensor) -> Any:
        return x.unbind(self.dim)

    def _join(self, parts: Sequence[wt.Tensor]) -> Any:
        return wt.stack(parts, self.dim)

    def log_abs_det_jacobian(self, x: wt.Tensor, y: wt.Tensor) -> Any:
        parts = zip(self.transforms, self._split(x), self._split(y))
        return self._join([t.log_abs_det_jacobian(a, b) for t, a, b in parts])
