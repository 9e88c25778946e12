"""Samples of the gamma and the Dirichlet distribution, with their gradients by the shapes."""

from __future__ import annotations

from typing import Any

from warptape import _C
from warptape import core as wt
from warptape.autograd import Function

WIDE = 1000.0  # shapes from which on the cube root of a sample is taken as normal in the gradient


def standard_gamma(concentration: wt.Tensor) -> Any:
    """Samples of Gamma(concentration, 1), differentiable by `concentration`."""
    return _StandardGamma.apply(concentration)


def standard_dirichlet(concentration: wt.Tensor) -> Any:
    """Samples of Dirichlet(concentration), inside of (0, 1), differentiable by `concentration` [*, K]."""
    return _StandardDirichlet.apply(concentration)


class _StandardGamma(Function):
    @staticmethod
    def forward(ctx: Any, concentration: wt.Tensor) -> Any:
        part, log_factor = _sample(concentration)
        sample = (part * log_factor.exp()).to(concentration.dtype)
        sample = sample.clamp(min=wt.finfo(sample.dtype).tiny)  # 0 has no logarithm
        ctx.save_for_backward(concentration, sample)
        return sample

    @staticmethod
    def backward(ctx: Any, grad: wt.Tensor) -> Any:
        concentration, sample = ctx.saved_tensors
        return grad * _slope(concentration.double(), sample.double()).to(grad.dtype)


class _StandardDirichlet(Function):
    @staticmethod
    def forward(ctx: Any, concentration: wt.Tensor) -> Any:
        part, log_factor = _sample(concentration.double())
        limits = wt.finfo(concentration.dtype)
        # Small shapes' gamma samples underflow; their logarithms do not.
        shares = (part.log() + log_factor).softmax(-1).to(concentration.dtype)
        shares = shares.clamp(min=limits.tiny, max=1 - limits.eps / 2)
        ctx.save_for_backward(concentration, shares)
        return shares

    @staticmethod
    def backward(ctx: Any, grad: wt.Tensor) -> Any:
        concentration, shares = ctx.saved_tensors
        shape = concentration.double()
        slope = _share_slope(shape, shape.sum(-1, True) - shape, shares.double()).to(grad.dtype)
        return slope * (grad - (shares * grad).sum(-1, True))


def _sample(shape: wt.Tensor) -> tuple[Any, Any]:
    """A sample and the logarithm of what to multiply it by, which small shapes' need."""
    part, log_factor = _C._private.standard_gamma(shape).unbind(-1)
    return part, log_factor


def _slope(shape: wt.Tensor, sample: wt.Tensor) -> Any:
    """How a sample moves with the shape at a fixed quantile: -(dF / dshape) / density (Figurnov et al.,
    "Implicit reparameterization gradients", section 2), from the power series of the incomplete gamma
    function.
    """
    x = sample
    # Beyond that a sample is its quantile's cube (Wilson and Hilferty, 1931), where the slope is elementary.
    wide = shape > WIDE
    root = (x / shape) ** (1 / 3)
    z = (root - 1 + 1 / (9 * shape)) * 3 * shape.sqrt()
    by_cube = root**3 + 3 * shape * root**2 * (1 / (9 * shape.square()) - z / (6 * shape**1.5))
    a, t = wt.where(wide, 1.0, shape), wt.where(wide, 1.0, x)
    term = 1 / a
    harmonic = term.clone()
    total, moved = term.clone(), term * harmonic
    k = 1
    while bool((term > total * 1e-17).any()) and k < 4 * WIDE:
        term = term * t / (a + k)
        harmonic = harmonic + 1 / (a + k)
        total, moved = total + term, moved + term * harmonic
        k += 1
    by_series = -t * (total * (t.log() - wt.digamma(a)) - moved)
    return wt.where(wide, by_cube, by_series)


def _share_slope(a: wt.Tensor, b: wt.Tensor, x: wt.Tensor) -> Any:
    """How a share x moves with its concentration a at a fixed quantile, b being the others' sum, by 1 - x:
    the implicit gradient of Beta(a, b), -(dF / da) / (density * (1 - x)).

    F is the incomplete beta function of (a, b, x), or 1 minus that of (b, a, 1 - x): the prefactor
    x**a (1 - x)**b / (a B(a, b)) times a series of positive terms (NIST DLMF, 8.17.8). The argument below 1/2
    has the shorter series, and loses digits only some deviations beyond the mean.
    """
    n = a + b
    low = wt.where(x <= 0.5, x * n < a + 8 + 5 * a.sqrt(), (1 - x) * n >= b + 8 + 5 * b.sqrt())
    p, t = wt.where(low, a, b), wt.where(low, x, 1 - x)
    total = term = wt.ones_like(t)
    slope = moved = wt.zeros_like(t)  # of a term's logarithm by a, and the sum of the terms times it
    k = 0
    while bool((term > total * 1e-17).any()) and k < 20 * WIDE:
        term = term * t * ((n + k) / (p + 1 + k))
        slope = slope + 1 / (n + k) - wt.where(low, 1 / (a + 1 + k), 0.0)
        total, moved = total + term, moved + term * slope
        k += 1
    digamma = wt.digamma(wt.where(low, a + 1, a))
    sums = total * (x.log() - digamma + wt.digamma(n)) + moved
    return wt.where(low, -x, x) / p * sums
