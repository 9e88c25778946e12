"""Whole numbers and the bits of others: functions and Tensor methods."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from . import _C
from ._arguments import checked, same_device
from ._tensor import Tensor

_ops = _C._functions
broadcast_shapes, broadcast_tensors = _ops.broadcast_shapes, _ops.broadcast_tensors
result_type = _ops.result_type

__all__ = ["frexp", "gcd", "lcm", "ldexp", "mvlgamma", "nextafter"]

_Frexp = namedtuple("frexp", ["mantissa", "exponent"])


def gcd(input: Tensor, other: Tensor) -> Tensor:
    """The greatest common divisors of integers, at least 0."""
    same_device("gcd", input, other)
    dtype = result_type(input, other)
    if dtype.is_floating_point or dtype.is_complex or dtype is _C.bool:
        raise _C.DtypeError(f"gcd: expected integers, got {input.dtype} and {other.dtype}")
    a, b = broadcast_tensors(input.to(dtype).abs(), other.to(dtype).abs())
    while bool((b != 0).any()):
        a, b = _ops.where(b == 0, a, b), _ops.where(b == 0, b, a % _ops.where(b == 0, 1, b))
    return a


def lcm(input: Tensor, other: Tensor) -> Tensor:
    """The least common multiples of integers, at least 0."""
    same_device("lcm", input, other)
    divisor = gcd(input, other)
    return (input // _ops.where(divisor == 0, 1, divisor) * other).abs().to(divisor.dtype)


def frexp(input: Tensor) -> Any:
    """(mantissa, exponent) with input = mantissa * 2**exponent and 0.5 <= |mantissa| < 1; exponent is
    int32."""
    import numpy as np

    mantissa, exponent = np.frexp(_numbers(input))
    made = [_C.from_numpy(np.asarray(a)).to(input.device) for a in (mantissa, exponent.astype(np.int32))]
    made[0] = made[0].to(input.dtype)
    if input.requires_grad:
        made[0] = input * 2.0 ** (-made[1]).to(input.dtype)
    return _Frexp(*made)


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input * 2**other."""
    if not input.is_floating_point() or other.is_floating_point() or other.is_complex():
        return input * _ops.pow(2.0, other)
    # By halves: the power alone may be beyond what the dtype holds.
    half = other.long().clamp(-(2**12), 2**12) // 2
    wide = input.double() * _ops.pow(2.0, half.double()) * _ops.pow(2.0, (other - half).double())
    return wide.to(result_type(input, other))


def _numbers(t: Tensor) -> Any:
    """A tensor's numbers for NumPy, which has no bfloat16."""
    t = t.detach().cpu()
    return (t.float() if t.dtype is _C.bfloat16 else t).numpy()


def _next_bfloat16(a: Any, b: Any) -> Any:
    """nextafter of float32 arrays in steps of bfloat16: the upper half of the bits."""
    import numpy as np

    step = np.where((b > a) == (a > 0), 1 << 16, -(1 << 16)).astype(np.int32)
    moved = (a.view(np.int32) + step).view(np.float32)
    moved = np.where(a == 0, np.copysign(np.int32(1 << 16).view(np.float32), b), moved)
    return np.where(a == b, b, np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), moved))


def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next number that the dtype has after input, towards other."""
    import numpy as np

    dtype = result_type(input, other)
    if not dtype.is_floating_point:
        raise NotImplementedError(f"nextafter: not implemented for {dtype}")
    a, b = (np.atleast_1d(_numbers(t.to(dtype))) for t in broadcast_tensors(input, other))
    found = _next_bfloat16(a, b) if dtype is _C.bfloat16 else np.nextafter(a, b)
    shape = broadcast_shapes(input.shape, other.shape)
    return _C.from_numpy(np.asarray(found)).reshape(shape).to(device=input.device, dtype=dtype)


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """`special.multigammaln`."""
    from .special import multigammaln

    return multigammaln(input, p)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
    setattr(Tensor, _name, globals()[_name])
