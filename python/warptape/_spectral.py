"""Short-time Fourier transforms and the windows that go with them."""

from __future__ import annotations

import builtins
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _C
from ._arguments import checked

if TYPE_CHECKING:
    from ._tensor import Tensor

__all__ = [
    "bartlett_window",
    "blackman_window",
    "hamming_window",
    "hann_window",
    "istft",
    "kaiser_window",
    "stft",
]

_ops = _C._functions


# ---- windows -----------------------------------------------------------------------------------------------


def _window(
    length: int,
    periodic: builtins.bool,
    shape: Callable[[Tensor], Tensor],
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    requires_grad: builtins.bool = False,
) -> Tensor:
    """`shape` of the places from 0 to 1; a periodic one is the symmetric one of one more place."""
    if length < 0:
        raise RuntimeError(f"window requires non-negative window_length, got window_length={length}")
    dtype = dtype or _C._get_default_dtype()
    if not dtype.is_floating_point:
        raise _C.DtypeError(f"window expects floating point dtypes, got: {dtype}")
    places = _ops.arange(length, dtype=_C.float64) / max(length - (not periodic), 1)
    values = shape(places) if length > 1 else _ops.ones(length, dtype=_C.float64)
    return values.to(device or _ops.empty(0).device, dtype).requires_grad_(requires_grad)


def hann_window(window_length: int, periodic: builtins.bool = True, **options: Any) -> Tensor:
    """(1 - cos(2 pi t)) / 2; `options` are those of all makers: dtype, device, requires_grad."""
    return hamming_window(window_length, periodic, 0.5, 0.5, **options)


def hamming_window(
    window_length: int,
    periodic: builtins.bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    **options: Any,
) -> Tensor:
    """alpha - beta cos(2 pi t)."""
    return _window(window_length, periodic, lambda t: alpha - beta * _ops.cos(2 * math.pi * t), **options)


def blackman_window(window_length: int, periodic: builtins.bool = True, **options: Any) -> Tensor:
    """0.42 - 0.5 cos(2 pi t) + 0.08 cos(4 pi t)."""

    def shape(t: Tensor) -> Tensor:
        return 0.42 - 0.5 * _ops.cos(2 * math.pi * t) + 0.08 * _ops.cos(4 * math.pi * t)

    return _window(window_length, periodic, shape, **options)


def bartlett_window(window_length: int, periodic: builtins.bool = True, **options: Any) -> Tensor:
    """A triangle."""
    return _window(window_length, periodic, lambda t: 1 - _ops.abs(2 * t - 1), **options)


def kaiser_window(
    window_length: int, periodic: builtins.bool = True, beta: float = 12.0, **options: Any
) -> Tensor:
    """I0(beta sqrt(1 - (2 t - 1)^2)) / I0(beta), I0 being the modified Bessel function of order 0."""
    import numpy as np

    def shape(t: Tensor) -> Tensor:
        inside = np.sqrt(np.maximum(0.0, 1 - (2 * t.numpy() - 1) ** 2))
        return _C.from_numpy(np.i0(beta * inside) / np.i0(beta))

    return _window(window_length, periodic, shape, **options)


# ---- the transforms ----------------------------------------------------------------------------------------


def _full_window(
    name: str, like: Tensor, window: Tensor | None, n_fft: int, win_length: int | None
) -> Tensor:
    """The window in the middle of n_fft places."""
    length = n_fft if win_length is None else win_length
    if not 0 < length <= n_fft:
        raise RuntimeError(f"{name}: expected 0 < win_length <= n_fft={n_fft}, got {length}")
    if window is None:
        window = _ops.ones(length, dtype=like.dtype.to_real(), device=like.device)
    if window.ndim != 1 or window.shape[0] != length:
        raise RuntimeError(
            f"{name}: expected a 1D window tensor of size equal to win_length={length}, "
            f"but got window with size {list(window.shape)}"
        )
    left = (n_fft - length) // 2
    return _C._nn.pad(window, (left, n_fft - length - left)) if length < n_fft else window


def _hop(name: str, hop_length: int | None, n_fft: int) -> int:
    hop = n_fft // 4 if hop_length is None else hop_length
    if hop <= 0:
        raise RuntimeError(f"{name}: expected hop_length > 0, but got hop_length={hop}")
    return hop


@checked
def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: builtins.bool = True,
    pad_mode: str = "reflect",
    normalized: builtins.bool = False,
    onesided: builtins.bool | None = None,
    return_complex: builtins.bool | None = None,
) -> Tensor:
    """The transforms of windows of n_fft elements that begin hop_length apart.

    Args:
        input: [length] or [batch, length].
        hop_length: n_fft // 4 unless given.
        win_length: n_fft unless given; a shorter window is filled with zeros on both sides.
        window: [win_length]; ones when left out.
        center: pad the input by n_fft // 2 on both sides (as `pad_mode` says), so that window t is about
            element t * hop_length.
        normalized: divide by sqrt(n_fft).
        onesided: frequencies up to n_fft // 2 alone; the default for real input.
        return_complex: must be given for real input; False gives a last dim of 2 instead.

    Returns:
        [..., frequencies, windows].

    Raises:
        RuntimeError: sizes that do not fit each other; return_complex left out.
    """
    from . import fft

    if return_complex is None and not input.is_complex():
        raise RuntimeError(
            "stft requires the return_complex parameter be given for real inputs, and will further require "
            "that return_complex=True in a future PyTorch release."
        )
    if input.ndim not in (1, 2):
        raise RuntimeError(f"stft: expected a 1D or 2D tensor, but got {input.ndim}D")
    if window is None:
        warnings.warn("A window was not provided. A rectangular window will be applied.", stacklevel=3)
    hop, weights = _hop("stft", hop_length, n_fft), _full_window("stft", input, window, n_fft, win_length)
    if center:
        rows = input.reshape(1, -1, input.shape[-1])  # reflections are padded in two dims and more
        rows = _C._nn.pad(rows, (n_fft // 2, n_fft // 2), pad_mode)
        input = rows.reshape([*input.shape[:-1], rows.shape[-1]])
    if not 0 < n_fft <= input.shape[-1]:
        raise RuntimeError(f"stft: expected 0 < n_fft <= {input.shape[-1]}, but got n_fft={n_fft}")
    frames = input.unfold(-1, n_fft, hop) * weights
    if onesided is None:
        onesided = not frames.is_complex()
    transform = fft.rfft if onesided else fft.fft
    found = transform(frames, norm="ortho" if normalized else None).transpose(-1, -2)
    return _ops.view_as_real(found.contiguous()) if return_complex is False else found


@checked
def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: builtins.bool = True,
    normalized: builtins.bool = False,
    onesided: builtins.bool | None = None,
    length: int | None = None,
    return_complex: builtins.bool = False,
) -> Tensor:
    """The signal of which `input` is the stft, [..., frequencies, windows], as nearly as windows allow.

    Griffin and Lim, Signal Estimation from Modified Short-Time Fourier Transform (1984), eq. 6.

    Raises:
        RuntimeError: sizes that do not fit each other; windows that leave elements uncovered.
    """
    from . import fft

    if not input.is_complex():
        raise RuntimeError("istft requires a complex-valued input tensor matching the output from stft")
    hop, weights = _hop("istft", hop_length, n_fft), _full_window("istft", input, window, n_fft, win_length)
    if onesided is None:
        onesided = input.shape[-2] != n_fft
    if input.shape[-2] != (n_fft // 2 + 1 if onesided else n_fft):
        raise RuntimeError(
            f"istft: the frequencies of n_fft={n_fft} are not as many as the {input.shape[-2]} of the input"
        )
    if onesided and return_complex:
        raise RuntimeError("istft: Cannot have onesided output if window or input is complex")
    spectra, norm = input.transpose(-1, -2), "ortho" if normalized else None
    # A real signal is made of the frequencies up to n_fft // 2, also where all are given.
    frames = fft.ifft(spectra, norm=norm) if return_complex else fft.irfft(spectra, n_fft, norm=norm)
    count = frames.shape[-2]
    whole = n_fft + hop * (count - 1)
    places = (
        hop * _ops.arange(count, device=input.device)[:, None] + _ops.arange(n_fft, device=input.device)
    ).flatten()

    def overlap(x: Tensor) -> Tensor:
        zeros = _ops.zeros([*x.shape[:-2], whole], dtype=x.dtype, device=x.device)
        return zeros.index_add(-1, places, x.flatten(-2))

    begin = n_fft // 2 if center else 0
    end = begin + length if length is not None else whole - begin
    signal, cover = overlap(frames * weights), overlap((weights * weights).expand(count, n_fft))
    signal, cover = signal[..., begin : min(end, whole)], cover[begin : min(end, whole)]
    if not cover.numel() or float(cover.detach().abs().min()) < 1e-11:
        raise RuntimeError("istft: window overlap add min: 1: some element is covered by no window")
    signal = signal / cover
    return _C._nn.pad(signal, (0, end - whole)) if end > whole else signal
