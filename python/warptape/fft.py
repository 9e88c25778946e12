"""Discrete Fourier transforms, `torch.fft`: any length, differentiable any number of times.

NumPy computes them (pocketfft) on the tensor's own memory. All are made of three: complex to complex, real to
the half of a spectrum that conjugates repeat, and back. The adjoint of a transform is the opposite one, with
its scale on the other side.

`norm` says where the factor 1/n stands: "backward" (the default) at the inverse, "forward" at the other,
"ortho" as 1/sqrt(n) at both. An `n`, or an `s` for several dims, cuts the input or fills it with zeros first.

Raises:
    RuntimeError: an unknown norm, a length below 1, dims that repeat, or more of them than the input has.
    DtypeError: float16 or bfloat16; complex numbers where a real signal is expected.
    NotImplementedError: a tensor that is not on the CPU.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import _C
from .autograd.function import Function

if TYPE_CHECKING:
    from ._tensor import Tensor

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "hfft2",
    "hfftn",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "ihfft2",
    "ihfftn",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

_ops = _C._functions
_OPPOSITE = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


# ---- the three transforms ----------------------------------------------------------------------------------


def _by_numpy(kind: str, x: Tensor, dtype: _C.dtype, *arguments: Any) -> Tensor:
    import numpy as np

    if x.device.type != "cpu":
        raise NotImplementedError(
            f"{kind}: transforms are computed on the CPU alone, got a tensor on {x.device}"
        )
    result = getattr(np.fft, kind)(x.detach().numpy(), *arguments)
    return _C.from_numpy(np.ascontiguousarray(result)).to(dtype)  # NumPy 1 computes in double precision


class _Complex(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...], inverse: bool, norm: str) -> Tensor:
        ctx.settings = dims, not inverse, _OPPOSITE[norm]
        return _by_numpy("ifftn" if inverse else "fftn", x, x.dtype, None, dims, norm)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return _Complex.apply(g, *ctx.settings), None, None, None


class _ToHalf(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, norm: str) -> Tensor:
        ctx.settings = x.shape[dim], dim, _OPPOSITE[norm]
        return _by_numpy("rfft", x, x.dtype.to_complex(), None, dim, norm)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        n, dim, _ = ctx.settings
        return _FromHalf.apply(g / _multiplicity(n, dim, g), *ctx.settings), None, None


class _FromHalf(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, n: int, dim: int, norm: str) -> Tensor:
        ctx.settings = n, dim, _OPPOSITE[norm]
        return _by_numpy("irfft", x, x.dtype.to_real(), n, dim, norm)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        n, dim, norm = ctx.settings
        half = _ToHalf.apply(g, dim, norm)
        return half * _multiplicity(n, dim, half), None, None, None


def _multiplicity(n: int, dim: int, half: Tensor) -> Tensor:
    """How often each frequency of a half spectrum stands in the whole one of length n."""
    times = _ops.full((half.shape[dim],), 2.0, dtype=half.dtype.to_real())
    times[0] = 1.0
    if n % 2 == 0:
        times[-1] = 1.0
    return times.reshape([-1] + [1] * (half.ndim - 1 - dim))


# ---- arguments ---------------------------------------------------------------------------------------------


def _checked_norm(norm: str | None) -> str:
    if norm is not None and norm not in _OPPOSITE:
        raise RuntimeError(f'Invalid normalization mode: "{norm}"; expected "backward", "ortho" or "forward"')
    return norm or "backward"


def _input(name: str, x: Tensor, is_complex: bool) -> Tensor:
    """The tensor in a dtype that the transform takes: integers become the default floating dtype."""
    if not (x.is_floating_point() or x.is_complex()):
        x = x.to(_C._get_default_dtype())
    if x.dtype in (_C.float16, _C.bfloat16):
        raise _C.DtypeError(f"{name}: unsupported dtype {x.dtype}; convert the tensor with .float()")
    if not is_complex and x.is_complex():
        raise _C.DtypeError(f"{name}: {name} expects a real input tensor, but got {x.dtype}")
    return x.to(x.dtype.to_complex()) if is_complex else x


def _check_length(n: int) -> None:
    if n < 1:
        raise RuntimeError(f"Invalid number of data points ({n}) specified")


def _resized(x: Tensor, n: int | None, dim: int) -> Tensor:
    """x cut, or filled up with zeros at the end, to n elements along dim."""
    if n is None:
        n = x.shape[dim]
    _check_length(n)
    missing = n - x.shape[dim]
    if missing <= 0:
        return _ops.narrow(x, dim, 0, n) if missing else x
    sizes = [missing if d == dim else size for d, size in enumerate(x.shape)]
    return _ops.cat((x, _ops.zeros(sizes, dtype=x.dtype, device=x.device)), dim)


def _one_dim(x: Tensor, dim: int) -> int:
    if x.ndim == 0:
        raise IndexError("Dimension specified as -1 but tensor has no dimensions")
    if not -x.ndim <= dim < x.ndim:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-x.ndim}, {x.ndim - 1}], but got {dim})"
        )
    return dim % x.ndim


def _dims_and_sizes(
    x: Tensor, s: Sequence[int] | None, dim: int | Sequence[int] | None
) -> tuple[list[int], list[int | None]]:
    """The dims of a transform over several, and the lengths asked for; None where it is the input's."""
    if isinstance(s, int):
        s = (s,)
    if s is not None and len(s) > x.ndim:
        raise RuntimeError(f"Got shape with {len(s)} values but input tensor only has {x.ndim} dimensions.")
    if dim is None:
        dims = list(range(x.ndim))[x.ndim - len(s) if s is not None else 0 :]
    else:
        dims = [_one_dim(x, d) for d in ((dim,) if isinstance(dim, int) else dim)]
    if len(set(dims)) < len(dims):
        raise RuntimeError("FFT dims must be unique")
    if s is not None and len(s) != len(dims):
        raise RuntimeError("When given, dim and shape arguments must have the same length")
    return dims, [None if n == -1 else n for n in s] if s is not None else [None] * len(dims)


def _finish(result: Tensor, out: Tensor | None) -> Tensor:
    return result if out is None else _ops.mul(result, 1, out=out)


# ---- what users call ---------------------------------------------------------------------------------------


def _transform(name: str, x: Tensor, s: Any, dim: Any, norm: str, inverse: bool) -> Tensor:
    dims, sizes = _dims_and_sizes(x, s, dim)
    x = _input(name, x, True)
    for d, n in zip(dims, sizes):
        x = _resized(x, n, d)
    return _Complex.apply(x, tuple(dims), inverse, norm) if dims else x.clone()


def _to_half(name: str, x: Tensor, s: Any, dim: Any, norm: str) -> Tensor:
    x = _input(name, x, False)
    dims, sizes = _dims_and_sizes(x, s, dim)
    if not dims:
        raise RuntimeError(f"{name} must transform at least one axis")
    for d, n in zip(dims, sizes):
        x = _resized(x, n, d)
    x = _ToHalf.apply(x, dims[-1], norm)
    return _Complex.apply(x, tuple(dims[:-1]), False, norm) if dims[1:] else x


def _from_half(name: str, x: Tensor, s: Any, dim: Any, norm: str) -> Tensor:
    dims, sizes = _dims_and_sizes(x, s, dim)
    x = _input(name, x, True)
    if not dims:
        raise RuntimeError(f"{name} must transform at least one axis")
    n = 2 * (x.shape[dims[-1]] - 1) if sizes[-1] is None else sizes[-1]
    _check_length(n)
    for d, size in zip(dims, [*sizes[:-1], n // 2 + 1]):
        x = _resized(x, size, d)
    if dims[1:]:
        x = _Complex.apply(x, tuple(dims[:-1]), True, norm)
    return _FromHalf.apply(x, n, dims[-1], norm)


# The functions of the kinds below: of the input, lengths, dims and norm.
_KINDS: dict[str, Callable[..., Tensor]] = {
    "fft": lambda name, x, s, dim, norm: _transform(name, x, s, dim, norm, False),
    "ifft": lambda name, x, s, dim, norm: _transform(name, x, s, dim, norm, True),
    "rfft": _to_half,
    "irfft": _from_half,
    "hfft": lambda name, x, s, dim, norm: _from_half(
        name, _input(name, x, True).conj(), s, dim, _OPPOSITE[norm]
    ),
    "ihfft": lambda name, x, s, dim, norm: _to_half(name, x, s, dim, _OPPOSITE[norm]).conj(),
}


def _family(kind: str, meaning: str) -> tuple[Callable[..., Tensor], ...]:
    """The transform of a kind over one dim, over two, and over any number."""
    run = _KINDS[kind]

    def one(
        input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Any = None
    ) -> Tensor:
        dims = (_one_dim(input, dim),)
        return _finish(run(kind, input, None if n is None else (n,), dims, _checked_norm(norm)), out)

    def two(
        input: Tensor, s: Any = None, dim: Any = (-2, -1), norm: str | None = None, *, out: Any = None
    ) -> Tensor:
        return _finish(run(f"{kind}2", input, s, dim, _checked_norm(norm)), out)

    def several(
        input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None, *, out: Any = None
    ) -> Tensor:
        return _finish(run(f"{kind}n", input, s, dim, _checked_norm(norm)), out)

    for function, end, where in ((one, "", "one dim"), (two, "2", "two dims"), (several, "n", "dims")):
        function.__name__ = function.__qualname__ = kind + end
        function.__doc__ = f"{meaning}, over {where}."
    return one, two, several


fft, fft2, fftn = _family("fft", "X[k] = sum over j of x[j] exp(-2 pi i j k / n), complex")
ifft, ifft2, ifftn = _family("ifft", "The inverse of fft, complex")
rfft, rfft2, rfftn = _family("rfft", "fft of a real tensor, of the last dim only the frequencies 0 to n // 2")
irfft, irfft2, irfftn = _family(
    "irfft", "The inverse of rfft, real; the last length is 2 * (size - 1) unless given"
)
hfft, hfft2, hfftn = _family(
    "hfft", "fft of a signal of which the last dim has the half that conjugates repeat; real"
)
ihfft, ihfft2, ihfftn = _family("ihfft", "The inverse of hfft")


# ---- frequencies -------------------------------------------------------------------------------------------


def fftfreq(n: int, d: float = 1.0, *, out: Any = None, **options: Any) -> Tensor:
    """The frequencies of fft's results, in cycles per unit of the sample spacing d."""
    found = _ops.arange(n, dtype=_C.float64)
    found = _ops.where(found > (n - 1) // 2, found - n, found) / (n * d)
    return _finish(_made(found, **options), out)


def rfftfreq(n: int, d: float = 1.0, *, out: Any = None, **options: Any) -> Tensor:
    """The frequencies of rfft's results, in cycles per unit of the sample spacing d."""
    return _finish(_made(_ops.arange(n // 2 + 1, dtype=_C.float64) / (n * d), **options), out)


def _made(
    values: Tensor,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: builtins.bool = False,
    pin_memory: builtins.bool = False,
) -> Tensor:
    return values.to(device, dtype or _C._get_default_dtype()).requires_grad_(requires_grad)


def fftshift(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """The frequency 0 moved to the middle of the dims given, or of all."""
    return _shifted(input, dim, lambda n: n // 2)


def ifftshift(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of fftshift."""
    return _shifted(input, dim, lambda n: (n + 1) // 2)


def _shifted(x: Tensor, dim: Any, by: Any) -> Tensor:
    dims = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    return _ops.roll(x, [by(x.shape[d]) for d in dims], dims) if dims else x.clone()
