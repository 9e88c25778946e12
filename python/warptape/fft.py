"""Discrete Fourier transforms, `torch.fft`: any length, differentiable any number of times.

`norm` says where the factor 1/n stands: "backward" (the default) at the inverse, "forward" at the other,
"ortho" as 1/sqrt(n) at both. An `n`, or an `s` for several dims, cuts the input or fills it with zeros first.

Raises:
    RuntimeError: an unknown norm, a length below 1, dims that repeat, or more of them than the input has.
    DtypeError: float16 or bfloat16; complex numbers where a real signal is expected.
    NotImplementedError: a tensor that is not on the CPU.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import _C
from ._arguments import checked

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
_Sizes = Sequence[int | None]
_OPPOSITE = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
# How the ops divide, by whether the transform is the forward one: not at all, by sqrt(n), by n.
_DIVISION = {
    ("backward", True): 0,
    ("backward", False): 2,
    ("forward", True): 2,
    ("forward", False): 0,
    ("ortho", True): 1,
    ("ortho", False): 1,
}


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


def _resized(x: Tensor, dims: list[int], sizes: _Sizes) -> Tensor:
    """x cut, or filled up with zeros at the end, to the sizes that are not None."""
    for dim, n in zip(dims, sizes):
        if n is None:
            n = x.shape[dim]
        _check_length(n)
        missing = n - x.shape[dim]
        if missing < 0:
            x = _ops.narrow(x, dim, 0, n)
        elif missing > 0:
            rest = [missing if d == dim else size for d, size in enumerate(x.shape)]
            x = _ops.cat((x, _ops.zeros(rest, dtype=x.dtype, device=x.device)), dim)
    return x


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
) -> tuple[list[int], _Sizes]:
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


def _transform(name: str, x: Tensor, dims: list[int], sizes: _Sizes, norm: str, inverse: bool) -> Tensor:
    x = _resized(_input(name, x, True), dims, sizes)
    return _ops._fft_c2c(x, dims, _DIVISION[norm, not inverse], not inverse) if dims else x.clone()


def _to_half(name: str, x: Tensor, dims: list[int], sizes: _Sizes, norm: str) -> Tensor:
    x = _input(name, x, False)
    if not dims:
        raise RuntimeError(f"{name} must transform at least one axis")
    return _ops._fft_r2c(_resized(x, dims, sizes), dims, _DIVISION[norm, True], True)


def _from_half(name: str, x: Tensor, dims: list[int], sizes: _Sizes, norm: str) -> Tensor:
    x = _input(name, x, True)
    if not dims:
        raise RuntimeError(f"{name} must transform at least one axis")
    n = sizes[-1]
    if n is None:
        n = 2 * (x.shape[dims[-1]] - 1)
    _check_length(n)
    x = _resized(x, dims, [*sizes[:-1], n // 2 + 1])
    return _ops._fft_c2r(x, dims, _DIVISION[norm, False], n)


# The functions of the kinds below: of the input, its dims, their lengths, and norm.
_KINDS: dict[str, Callable[..., Tensor]] = {
    "fft": lambda name, x, dims, sizes, norm: _transform(name, x, dims, sizes, norm, False),
    "ifft": lambda name, x, dims, sizes, norm: _transform(name, x, dims, sizes, norm, True),
    "rfft": _to_half,
    "irfft": _from_half,
    "hfft": lambda name, x, dims, sizes, norm: _from_half(
        name, _input(name, x, True).conj(), dims, sizes, _OPPOSITE[norm]
    ),
    "ihfft": lambda name, x, dims, sizes, norm: _to_half(name, x, dims, sizes, _OPPOSITE[norm]).conj(),
}


def _family(kind: str, meaning: str) -> tuple[Callable[..., Tensor], ...]:
    """The transform of a kind over one dim, over two, and over any number."""
    run = _KINDS[kind]

    def one(
        input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Any = None
    ) -> Tensor:
        sizes = [n if n is None else operator.index(n)]
        return _finish(run(kind, input, [_one_dim(input, dim)], sizes, _checked_norm(norm)), out)

    def two(
        input: Tensor, s: Any = None, dim: Any = (-2, -1), norm: str | None = None, *, out: Any = None
    ) -> Tensor:
        return _finish(run(f"{kind}2", input, *_dims_and_sizes(input, s, dim), _checked_norm(norm)), out)

    def several(
        input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None, *, out: Any = None
    ) -> Tensor:
        return _finish(run(f"{kind}n", input, *_dims_and_sizes(input, s, dim), _checked_norm(norm)), out)

    for function, end, where in ((one, "", "one dim"), (two, "2", "two dims"), (several, "n", "dims")):
        function.__name__ = function.__qualname__ = kind + end
        function.__doc__ = f"{meaning}, over {where}."
    return checked(one), checked(two), checked(several)


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


@checked
def fftshift(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """The frequency 0 moved to the middle of the dims given, or of all."""
    return _shifted(input, dim, lambda n: n // 2)


@checked
def ifftshift(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of fftshift."""
    return _shifted(input, dim, lambda n: (n + 1) // 2)


def _shifted(x: Tensor, dim: Any, by: Any) -> Tensor:
    dims = list(range(x.ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    return _ops.roll(x, [by(x.shape[d]) for d in dims], dims) if dims else x.clone()
