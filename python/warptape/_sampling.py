"""Random draws that are a few ops: functions and Tensor methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from . import _C
from ._arguments import checked
from ._tensor import Tensor

_ops = _C._functions
broadcast_shapes, broadcast_tensors = _ops.broadcast_shapes, _ops.broadcast_tensors

__all__ = ["bernoulli", "binomial", "normal", "poisson"]

WIDE_MEAN = 10.0  # from here on counts are drawn by rejection, below one by one


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Any = None,
    out: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Independent normal draws, cut off from mean and std.

    Args:
        mean: a number, or a tensor with the mean of each element.
        std: a number, or a tensor with the standard deviation of each element.
        size: the shape, where both are numbers.
        generator: whose numbers are used.
        out: where the result goes.
        options: dtype, device and requires_grad, where both are numbers.

    Raises:
        RuntimeError: a negative standard deviation, or tensors whose shapes do not broadcast.
        TypeError: size beside a tensor, or neither.
    """
    tensors = [t for t in (mean, std) if isinstance(t, Tensor)]
    if (size is None) != bool(tensors) or (tensors and options):
        raise TypeError("normal(): expected a size where mean and std are numbers, and none beside a tensor")
    if not tensors:
        return _ops.normal(mean, std, size, generator=generator, out=out, **options)
    if not (bool((std >= 0).all()) if isinstance(std, Tensor) else std >= 0):
        raise RuntimeError("normal expects all elements of std >= 0.0")
    like = tensors[0].detach() if out is None else out
    noise = like.new_empty(broadcast_shapes(*(t.shape for t in tensors))).normal_(generator=generator)
    mean, std = (t.detach() if isinstance(t, Tensor) else t for t in (mean, std))
    found = noise.mul_(std).add_(mean)
    return found if out is None else _C._write_out("normal", out, found)


def bernoulli(
    input: Tensor, p: float | None = None, *, generator: Any = None, out: Tensor | None = None
) -> Tensor:
    """1 with input's probabilities, or with probability p, else 0; drawn in the dtype of `out`."""
    if out is None:
        if p is None:
            return _ops.bernoulli(input, generator=generator)
        return _ops.empty_like(input).bernoulli_(p, generator=generator)
    if p is None and not input.is_floating_point():
        raise _C.DtypeError(f"bernoulli: expected probabilities of a floating dtype, got {input.dtype}")
    if out.shape != input.shape:
        _ops.empty(input.shape, out=out)
    return out.bernoulli_(input if p is None else p, generator=generator)


def poisson(input: Tensor, generator: Any = None) -> Tensor:
    """Draws of Poisson's distribution with the means `input`, in its shape and dtype.

    Small means by inversion; others by the transformed rejection of Hörmann, "The transformed rejection
    method for generating Poisson random variables", algorithm PTRS. An infinite mean gives infinity.

    Raises:
        RuntimeError: a mean that is negative or nan.
    """
    if not input.is_floating_point() or not bool((input >= 0).all()):
        raise RuntimeError("poisson: invalid Poisson rate, expected floating rates to be non-negative")
    rate = input.detach().double()
    few, wide = rate < WIDE_MEAN, rate.isfinite() & (rate >= WIDE_MEAN)
    found = _ops.where(few, _poisson_by_sum(_ops.where(few, rate, 0.0), generator), rate)
    if bool(wide.any()):
        drawn = _poisson_by_rejection(_ops.where(wide, rate, 2 * WIDE_MEAN), generator)
        found = _ops.where(wide, drawn, found)
    return found.to(input.dtype)


def _draw(like: Tensor, generator: Any) -> Tensor:
    return _ops.rand(like.shape, generator=generator, dtype=_C.float64, device=like.device)


def _poisson_by_sum(rate: Tensor, generator: Any) -> Tensor:
    uniform = _draw(rate, generator)
    count = _ops.zeros_like(rate)
    term = (-rate).exp()
    total = term.clone()
    for k in range(1, 100):  # 99 is beyond what a double tells from 1
        above = uniform > total
        if not bool(above.any()):
            break
        count += above
        term = term * rate / k
        total = total + term
    return count


def _rejected(
    mean: Tensor, a: Tensor, b: Tensor, most: Tensor | float, accepts: Callable[..., Tensor], generator: Any
) -> Tensor:
    """Hörmann's transformed rejection: `accepts(k, near, v)` says whether k, drawn with v, is taken."""
    out = _ops.full_like(mean, -1.0)
    while bool((open_ := out < 0).any()):
        u, v = _draw(mean, generator) - 0.5, _draw(mean, generator)
        near = 0.5 - u.abs()
        k = ((2 * a / near + b) * u + mean).floor()
        out = _ops.where(open_ & (k >= 0) & (k <= most) & accepts(k, near, v), k, out)
    return out


def _poisson_by_rejection(rate: Tensor, generator: Any) -> Tensor:
    b = 0.931 + 2.53 * rate.sqrt()
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    quick = 0.9277 - 3.6224 / (b - 2)
    log_rate = rate.log()

    def accepts(k: Tensor, near: Tensor, v: Tensor) -> Tensor:
        at_once = (near >= 0.07) & (v <= quick)
        log_accept = (v * inverse_alpha / (a / near.square() + b)).log()
        exact = log_accept <= -rate + k * log_rate - _ops.lgamma(k + 1)
        return at_once | (exact & ((near >= 0.013) | (v <= near)))

    return _rejected(rate + 0.43, a, b, math.inf, accepts, generator)


def binomial(count: Tensor, prob: Tensor, generator: Any = None) -> Tensor:
    """The number of successes among `count` trials with probability `prob`, element by element.

    Few successes by the trials between them; others by Hörmann, "The generation of binomial random variates",
    algorithm BTRS. nan and infinite counts give nan.

    Raises:
        ValueError: a count or a probability of an integer dtype.
    """
    for name, given in (("count", count), ("prob", prob)):
        if not given.is_floating_point():
            raise ValueError(f"binomial only supports floating-point dtypes for {name}, got: {given.dtype}")
    n, p = (t.detach().double() for t in broadcast_tensors(count, prob))
    known = n.isfinite() & ~p.isnan()
    n, p = _ops.where(known, n, 0.0).floor().clamp(min=0), _ops.where(known, p, 0.0).clamp(0, 1)
    rare = _ops.minimum(p, 1 - p)  # of the rarer outcome, and how often it comes:
    many = n * rare >= WIDE_MEAN
    found = _binomial_by_waiting(_ops.where(many, 0.0, n), rare, generator)
    if bool(many.any()):
        drawn = _binomial_by_rejection(
            _ops.where(many, n, 4 * WIDE_MEAN), _ops.where(many, rare, 0.5), generator
        )
        found = _ops.where(many, drawn, found)
    found = _ops.where(p > 0.5, n - found, found)
    return _ops.where(known, found, math.nan).to(prob.dtype)


def _binomial_by_waiting(n: Tensor, p: Tensor, generator: Any) -> Tensor:
    found, used = _ops.zeros_like(n), _ops.zeros_like(n)
    log_failure = (-p).log1p()
    while True:
        used = used + (_draw(n, generator).log() / log_failure).ceil()  # trials up to the next success
        again = used <= n
        if not bool(again.any()):
            return found
        found += again


def _stirling_error(k: Tensor) -> Tensor:
    """log k! less Stirling's approximation of it."""
    x = k + 1
    few = _ops.lgamma(x) - ((k + 0.5) * x.log() - x + 0.5 * math.log(2 * math.pi))
    return _ops.where(k < 10, few, (1 / 12 - (1 / 360 - 1 / 1260 / x.square()) / x.square()) / x)


def _binomial_by_rejection(n: Tensor, p: Tensor, generator: Any) -> Tensor:
    spread = (n * p * (1 - p)).sqrt()
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    quick, alpha = 0.92 - 4.2 / b, (2.83 + 5.1 / b) * spread
    odds, mode = p / (1 - p), ((n + 1) * p).floor()

    def accepts(k: Tensor, near: Tensor, v: Tensor) -> Tensor:
        k = _ops.minimum(k.clamp(min=0), n)
        log_ratio = (  # of the chances of k and of the mode
            (mode + 0.5) * ((mode + 1) / (odds * (n - mode + 1))).log()
            + (n + 1) * ((n - mode + 1) / (n - k + 1)).log()
            + (k + 0.5) * (odds * (n - k + 1) / (k + 1)).log()
            + _stirling_error(mode)
            + _stirling_error(n - mode)
            - _stirling_error(k)
            - _stirling_error(n - k)
        )
        exact = (v * alpha / (a / near.square() + b)).log() <= log_ratio
        return ((near >= 0.07) & (v <= quick)) | exact

    return _rejected(n * p + 0.5, a, b, n, accepts, generator)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])


def _uniform_inside(self: Tensor, generator: Any) -> Tensor:
    """Numbers in (0, 1) in float64, for what has no value at the ends."""
    if self.is_complex():
        raise _C.DtypeError(f"these draws are not complex, got a tensor of {self.dtype}")
    drawn = _ops.rand(self.shape, generator=generator, dtype=_C.float64, device=self.device)
    return drawn.clamp_(min=2.0**-53)


def _cauchy_(self: Tensor, median: float = 0, sigma: float = 1, *, generator: Any = None) -> Tensor:
    """Fills the tensor with draws of the Cauchy distribution."""
    angle = (_uniform_inside(self, generator) - 0.5) * math.pi
    return self.copy_(median + sigma * angle.tan())


def _geometric_(self: Tensor, p: float, *, generator: Any = None) -> Tensor:
    """Fills the tensor with draws of the number of trials up to the first success."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    return self.copy_((_uniform_inside(self, generator).log() / math.log1p(-p)).ceil())


def _log_normal_(self: Tensor, mean: float = 1, std: float = 2, *, generator: Any = None) -> Tensor:
    """Fills the tensor with exp of normal draws."""
    if std <= 0 or self.is_complex():
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std} for {self.dtype}")
    return self.normal_(mean, std, generator=generator).exp_()


for _method in (_cauchy_, _geometric_, _log_normal_):
    setattr(Tensor, _method.__name__[1:], _method)
