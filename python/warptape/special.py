"""Special functions, under torch.special's names."""

from __future__ import annotations

import math
from typing import Any

from . import _C
from ._arguments import checked
from ._missing import lookup as _lookup
from ._tensor import Tensor
from .nn import functional as _F

_ops = _C._functions

for _name in (
    *(
        "digamma",
        "erf",
        "erfc",
        "erfinv",
        "exp2",
        "expm1",
        "log1p",
        "log_softmax",
        "logit",
        "logsumexp",
        "round",
    ),
    *("sinc", "softmax", "xlogy"),
):
    if hasattr(_ops, _name):
        globals()[_name] = getattr(_ops, _name)
expit = _ops.sigmoid
gammaln = _ops.lgamma
psi = _ops.digamma


@checked
def log_softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """`nn.functional.log_softmax`."""
    return _F.log_softmax(input, dim, dtype=dtype)


@checked
def softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """`nn.functional.softmax`."""
    return _F.softmax(input, dim, dtype=dtype)


@checked
def entr(input: Tensor) -> Tensor:
    """-x log(x); 0 at 0, -inf below."""
    return _ops.where(input < 0, -math.inf, -_ops.xlogy(input, input.clamp(min=0)))


@checked
def ndtr(input: Tensor) -> Tensor:
    """The share of the standard normal distribution below x."""
    return _ops.where(
        input > -1, 0.5 * (1 + _ops.erf(input * math.sqrt(0.5))), 0.5 * _ops.erfc(-input * math.sqrt(0.5))
    )


@checked
def ndtri(input: Tensor) -> Tensor:
    """The x below which that share of the standard normal distribution lies."""
    return math.sqrt(2) * _ops.erfinv(2 * input - 1)


@checked
def xlog1py(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:
    """x log(1 + y); 0 where x is 0."""
    x, y = (t if isinstance(t, Tensor) else _C._tensor(t, None, None, False, True) for t in (input, other))
    found = _ops.where((x == 0) & ~y.isnan(), 0.0, x * _ops.log1p(y))
    return found if out is None else _C._write_out("xlog1py", out, found)


@checked
def multigammaln(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p."""
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    shifts = -_ops.arange(p, device=input.device).to(input.dtype) / 2
    return _ops.lgamma(input.unsqueeze(-1) + shifts).sum(-1) + p * (p - 1) / 4 * math.log(math.pi)


def _bessel_i(input: Tensor, order: int, scaled: bool) -> Tensor:
    """I_n(x) as the mean of exp(x cos t) cos(n t) over a period: the trapezoidal rule converges geometrically
    (Trefethen and Weideman, "The exponentially convergent trapezoidal rule", section 4)."""
    if input.is_complex():
        raise _C.DtypeError(f"special.i{order}: not implemented for {input.dtype}")
    angles = _ops.arange(200, dtype=_C.float64, device=input.device) * (math.pi / 100)
    x = input.double().unsqueeze(-1)
    found = ((x * _ops.cos(angles) - x.abs()).exp() * _ops.cos(order * angles)).mean(-1)
    return (found if scaled else found * input.double().abs().exp()).to(input.dtype)


@checked
def i0(input: Tensor) -> Tensor:
    """The modified Bessel function of order 0, for |x| up to 700."""
    return _bessel_i(input, 0, False)


@checked
def i0e(input: Tensor) -> Tensor:
    """exp(-|x|) i0(x)."""
    return _bessel_i(input, 0, True)


@checked
def i1(input: Tensor) -> Tensor:
    """The modified Bessel function of order 1, for |x| up to 700."""
    return _bessel_i(input, 1, False)


@checked
def i1e(input: Tensor) -> Tensor:
    """exp(-|x|) i1(x)."""
    return _bessel_i(input, 1, True)


__getattr__ = _lookup(__name__)
