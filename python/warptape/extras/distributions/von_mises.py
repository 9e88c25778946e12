"""The von Mises distribution, on a circle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from warptape import core as wt
from warptape.core.namespaces import special

from . import constraints
from .distribution import Distribution
from .utils import broadcast_all

__all__ = ["VonMises"]


class VonMises(Distribution):
    """Angles around `loc` (radians); the larger the `concentration`, the closer.

    Args:
        loc: any angle.
        concentration: positive.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.VonMises(torch.tensor(0.0), torch.tensor(4.0)).mean
    tensor(0.)
    """

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real

    def __init__(
        self, loc: wt.Tensor | float, concentration: wt.Tensor | float, validate_args: bool | None = None
    ) -> None:
        self.loc, self.concentration = broadcast_all(loc, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    mean = mode = property(lambda self: self.loc)

    @property
    def variance(self) -> Any:
        """The circular variance."""
        k = self.concentration
        return 1 - special.i1e(k) / special.i0e(k)

    def log_prob(self, value: wt.Tensor) -> Any:
        self._validate_sample(value)
        k = self.concentration
        # log I0(k) = log(i0e(k)) + k, without overflow
        return k * (value - self.loc).cos() - math.log(2 * math.pi) - special.i0e(k).log() - k

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """By rejection from a wrapped Cauchy distribution, in double precision.

        Best and Fisher, "Efficient simulation of the von Mises distribution", 1979.
        """
        shape = self._extended_shape(sample_shape)
        with wt.no_grad():
            loc, k = self.loc.double().expand(shape), self.concentration.double()
            tau = 1 + (1 + 4 * k.square()).sqrt()
            rho = (tau - (2 * tau).sqrt()) / (2 * k)
            # for small k the exact value loses its digits
            r = wt.where(k < 1e-5, 1 / k + k, (1 + rho.square()) / (2 * rho)).expand(shape)
            k = k.expand(shape)
            samples = wt.zeros(shape, dtype=loc.dtype, device=loc.device)
            done = wt.zeros(shape, dtype=wt.bool, device=loc.device)
            while not done.all():
                u1, u2, u3 = wt.rand((3, *shape), dtype=loc.dtype, device=loc.device).unbind()
                z = (math.pi * u1).cos()
                f = (1 + r * z) / (r + z)
                c = k * (r - f)
                taken = (c * (2 - c) - u2 > 0) | ((c / u2).log() + 1 - c >= 0)
                # one that was taken before may be taken anew
                samples = wt.where(taken, (u3 - 0.5).sign() * f.acos(), samples)
                done = done | taken
            return ((samples + math.pi + loc) % (2 * math.pi) - math.pi).to(self.loc.dtype)
