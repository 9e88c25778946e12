"""Samples of the gamma distribution, with the gradient of the sample by its shape."""

from __future__ import annotations

from typing import Any

import warptape
from warptape.autograd import Function

WIDE = 1000.0  # shapes from which on the cube root of a sample is taken as normal in the gradient


def standard_gamma(concentration: Any) -> Any:
    """Samples of Gamma(concentration, 1), differentiable by `concentration`."""
    return _StandardGamma.apply(concentration)


class _StandardGamma(Function):
    @staticmethod
    def forward(ctx: Any, concentration: Any) -> Any:
        sample = _sample(concentration.double()).to(concentration.dtype)
        ctx.save_for_backward(concentration, sample)
        return sample

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        concentration, sample = ctx.saved_tensors
        return grad * _slope(concentration.double(), sample.double()).to(grad.dtype)


def _sample(shape: Any) -> Any:
    """Marsaglia and Tsang, "A simple method for generating gamma variables", section 2; below 1 by its
    section 6."""
    boosted = shape < 1
    d = warptape.where(boosted, shape + 1, shape) - 1 / 3
    c = (9 * d).rsqrt()
    out = warptape.where(d.isnan(), d, -1.0)
    while bool((open_ := out < 0).any()):
        normal, uniform = warptape.randn_like(d), warptape.rand_like(d)
        cube = (1 + c * normal) ** 3
        bound = 0.5 * normal.square() + d - d * cube + d * cube.clamp(min=1e-300).log()
        taken = open_ & (cube > 0) & (uniform.log() < bound)
        out = warptape.where(taken, d * cube, out)
    factor = (1 - warptape.rand_like(d)) ** (1 / shape)
    return warptape.where(boosted, out * factor, out)


def _slope(shape: Any, sample: Any) -> Any:
    """How a sample moves with the shape at a fixed quantile: -(dF / dshape) / density (Figurnov et al.,
    "Implicit reparameterization gradients", section 2), from the power series of the incomplete gamma
    function.
    """
    x = sample.clamp(min=1e-300)
    # Beyond that a sample is its quantile's cube (Wilson and Hilferty, 1931), where the slope is elementary.
    wide = shape > WIDE
    root = (x / shape) ** (1 / 3)
    z = (root - 1 + 1 / (9 * shape)) * 3 * shape.sqrt()
    by_cube = root**3 + 3 * shape * root**2 * (1 / (9 * shape.square()) - z / (6 * shape**1.5))
    a, t = warptape.where(wide, 1.0, shape), warptape.where(wide, 1.0, x)
    term = 1 / a
    harmonic = term.clone()
    total, moved = term.clone(), term * harmonic
    k = 1
    while bool((term > total * 1e-17).any()) and k < 4 * WIDE:
        term = term * t / (a + k)
        harmonic = harmonic + 1 / (a + k)
        total, moved = total + term, moved + term * harmonic
        k += 1
    by_series = -t * (total * (t.log() - warptape.digamma(a)) - moved)
    return warptape.where(wide, by_cube, by_series)
