"""Whole numbers and the bits of others: functions and Tensor methods."""

from __future__ import annotations

from typing import Any

from . import _C
from ._arguments import checked, same_device
from ._composed import broadcast_tensors
from ._tensor import Tensor
from .linalg._lapack import named

_ops = _C._functions

__all__ = ["frexp", "gcd", "lcm", "ldexp", "mvlgamma", "nextafter"]

_Frexp = named("frexp", "mantissa", "exponent")


def gcd(input: Tensor, other: Tensor) -> Tensor:
    """The greatest common divisors of integers, at least 0."""
    same_device("gcd", input, other)
    if any(t.is_floating_point() or t.is_complex() for t in (input, other)):
        raise _C.DtypeError(f"gcd: expected integers, got {input.dtype} and {other.dtype}")
    a, b = broadcast_tensors(input.abs(), other.abs())
    while bool((b != 0).any()):
        a, b = _ops.where(b == 0, a, b), _ops.where(b == 0, b, a % _ops.where(b == 0, 1, b))
    return a


def lcm(input: Tensor, other: Tensor) -> Tensor:
    """The least common multiples of integers, at least 0."""
    same_device("lcm", input, other)
    divisor = gcd(input, other)
    return (input // _ops.where(divisor == 0, 1, divisor) * other).abs()


def frexp(input: Tensor) -> Any:
    """(mantissa, exponent) with input = mantissa * 2**exponent and 0.5 <= |mantissa| < 1; exponent is
    int32."""
    import numpy as np

    mantissa, exponent = np.frexp(input.detach().cpu().numpy())
    made = [_C.from_numpy(np.asarray(a)).to(input.device) for a in (mantissa, exponent.astype(np.int32))]
    if input.requires_grad:
        made[0] = input * 2.0 ** (-made[1]).to(input.dtype)
    return _Frexp(*made)


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input * 2**other."""
    return input * _ops.pow(2.0, other.to(input.dtype) if not other.is_floating_point() else other)


def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next number that the dtype has after input, towards other."""
    import numpy as np

    a, b = broadcast_tensors(input.detach(), other.detach())
    return _C.from_numpy(np.asarray(np.nextafter(a.cpu().numpy(), b.cpu().numpy()))).to(input.device)


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """`special.multigammaln`."""
    from .special import multigammaln

    return multigammaln(input, p)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
    setattr(Tensor, _name, globals()[_name])
