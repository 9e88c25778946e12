"""Random draws that are a few ops: functions and Tensor methods."""

from __future__ import annotations

import math
from typing import Any

from . import _C
from ._arguments import checked
from ._composed import broadcast_shapes, broadcast_tensors
from ._tensor import Tensor

_ops = _C._functions

__all__ = ["binomial", "normal", "poisson"]

WIDE_RATE = 10.0  # from here on Poisson's are drawn by rejection, below by adding up probabilities


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
    if bool((std < 0).any()) if isinstance(std, Tensor) else std < 0:
        raise RuntimeError("normal expects all elements of std >= 0.0")
    like = tensors[0].detach()
    noise = like.new_empty(broadcast_shapes(*(t.shape for t in tensors))).normal_(generator=generator)
    mean, std = (t.detach() if isinstance(t, Tensor) else t for t in (mean, std))
    found = noise.mul_(std).add_(mean)
    return found if out is None else out.copy_(found)


def poisson(input: Tensor, generator: Any = None) -> Tensor:
    """Draws of Poisson's distribution with the means `input`, in its shape and dtype.

    Small means by inversion; others by the transformed rejection of Hörmann, "The transformed rejection
    method for generating Poisson random variables", algorithm PTRS.

    Raises:
        RuntimeError: a negative mean.
    """
    if not input.is_floating_point() or bool((input < 0).any()):
        raise RuntimeError("poisson: invalid Poisson rate, expected floating rates to be non-negative")
    rate = input.detach().double()
    few = rate < WIDE_RATE
    small = _poisson_by_sum(_ops.where(few, rate, 0.0), generator)
    if bool(few.all()):
        return small.to(input.dtype)
    large = _poisson_by_rejection(_ops.where(few, 2 * WIDE_RATE, rate), generator)
    return _ops.where(few, small, large).to(input.dtype)


def _poisson_by_sum(rate: Tensor, generator: Any) -> Tensor:
    uniform = _ops.rand(rate.shape, generator=generator, dtype=_C.float64, device=rate.device)
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


def _poisson_by_rejection(rate: Tensor, generator: Any) -> Tensor:
    b = 0.931 + 2.53 * rate.sqrt()
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    quick = 0.9277 - 3.6224 / (b - 2)
    log_rate = rate.log()
    out = _ops.full_like(rate, -1.0)
    while bool((open_ := out < 0).any()):
        u, v = (
            _ops.rand(rate.shape, generator=generator, dtype=_C.float64, device=rate.device) for _ in range(2)
        )
        u = u - 0.5
        near = 0.5 - u.abs()
        k = ((2 * a / near + b) * u + rate + 0.43).floor()
        at_once = (near >= 0.07) & (v <= quick)
        log_accept = (v * inverse_alpha / (a / near.square() + b)).log()
        exact = log_accept <= -rate + k * log_rate - _ops.lgamma(k + 1)
        taken = open_ & (k >= 0) & (at_once | (exact & ((near >= 0.013) | (v <= near))))
        out = _ops.where(taken, k, out)
    return out


def binomial(count: Tensor, prob: Tensor, generator: Any = None) -> Tensor:
    """The number of successes among `count` trials with probability `prob`, element by element."""
    count, prob = broadcast_tensors(count, prob)
    found = _ops.zeros_like(prob)
    for trial in range(int(count.max()) if count.numel() else 0):
        draw = _ops.rand(prob.shape, generator=generator, dtype=prob.dtype, device=prob.device)
        found += (draw < prob) & (trial < count)
    return found


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
