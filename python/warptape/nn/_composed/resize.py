"""Images of other sizes, and indices as vectors."""

from __future__ import annotations

import warnings
from typing import Any

import warptape
from warptape import _C, Tensor

_ops = _C._functions

__all__ = ["interpolate", "one_hot", "upsample", "upsample_bilinear", "upsample_nearest"]


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 [*] -> int64 [*, classes], 1 at each index. Without num_classes, one more than the
    largest index."""
    if tensor.dtype is not _C.int64:
        raise RuntimeError(
            f"one_hot is only applicable to index tensor of type LongTensor, got {tensor.dtype}"
        )
    if tensor.numel() == 0 and num_classes <= 0:
        raise RuntimeError("Can not infer total number of classes from empty tensor.")
    if tensor.is_meta and num_classes < 0:
        raise _C.DeviceError("one_hot: a meta tensor has no data to count the classes by; give num_classes")
    if tensor.numel() and not tensor.is_meta:
        if int(tensor.min()) < 0:
            raise RuntimeError("Class values must be non-negative.")
        if num_classes == -1:
            num_classes = int(tensor.max()) + 1
        elif int(tensor.max()) >= num_classes:
            raise RuntimeError("Class values must be smaller than num_classes.")
    out = warptape.zeros((*tensor.shape, num_classes), dtype=_C.int64, device=tensor.device)
    return out.scatter_(-1, tensor.unsqueeze(-1), 1)


def _sizes(input: Tensor, size: Any, scale: Any) -> list[int]:
    spatial = input.dim() - 2
    if (size is None) == (scale is None):
        raise ValueError("only one of size or scale_factor should be defined")
    if size is not None:
        return [int(size)] * spatial if isinstance(size, int) else [int(s) for s in size]
    factors = [scale] * spatial if isinstance(scale, int | float) else list(scale)
    return [int(n * f) for n, f in zip(input.shape[2:], factors, strict=True)]


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """[N, C, *spatial] resized, by 'nearest', 'linear', 'bilinear' or 'trilinear' interpolation. Of integers,
    uint8 alone by 'nearest' and 'bilinear', as images are."""
    linear = {"linear": 3, "bilinear": 4, "trilinear": 5}
    if mode not in ("nearest", *linear) or antialias:
        raise NotImplementedError(f"interpolate: mode {mode!r} (antialias={antialias}) is not supported yet")
    if mode in linear and input.dim() != linear[mode]:
        raise NotImplementedError(f"interpolate: mode {mode!r} takes {linear[mode]} dims, got {input.dim()}")
    if not (input.is_floating_point() or (input.dtype is _C.uint8 and mode in ("nearest", "bilinear"))):
        raise NotImplementedError(f"interpolate: mode {mode!r} is not implemented for {input.dtype}")
    out = input
    sizes = _sizes(input, size, scale_factor)
    if min((*input.shape[1:], *sizes), default=1) <= 0:
        raise _C.ShapeError(
            "interpolate: Input and output sizes should be greater than 0, got "
            f"{tuple(input.shape)} and {sizes}"
        )
    for d, n in reversed(list(enumerate(sizes))):
        given = None
        if scale_factor is not None and not recompute_scale_factor:
            given = scale_factor if isinstance(scale_factor, int | float) else scale_factor[d]
        if mode == "nearest":
            out = _nearest(out, d + 2, n, given)
        elif input.dtype is _C.uint8:
            out = _linear_uint8(out, d + 2, n, given, bool(align_corners))
        else:
            out = _linear(out, d + 2, n, given, bool(align_corners))
    return out


def _nearest(x: Tensor, dim: int, n: int, scale: float | None) -> Tensor:
    step = x.shape[dim] / n if scale is None else 1.0 / scale
    place = (_numbers(n, x) * step).long().clamp(max=x.shape[dim] - 1)
    return x.index_select(dim, place)


def _numbers(n: int, x: Tensor) -> Tensor:
    return warptape.arange(n, dtype=_C.float64, device=x.device)


def _neighbours(
    x: Tensor, dim: int, n: int, scale: float | None, align: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The elements below and above each of the n new places along dim, and the weights of those above."""
    old = x.shape[dim]
    if align:
        places = _numbers(n, x) * (old - 1) / max(n - 1, 1)
    else:
        step = old / n if scale is None else 1.0 / scale
        places = ((_numbers(n, x) + 0.5) * step - 0.5).clamp(min=0.0)
    low = places.long().clamp(max=old - 1)
    high = (low + 1).clamp(max=old - 1)
    shape = [n if d == dim else 1 for d in range(x.dim())]
    return x.index_select(dim, low), x.index_select(dim, high), (places - low).reshape(shape)


def _linear(x: Tensor, dim: int, n: int, scale: float | None, align: bool) -> Tensor:
    a, b, weight = _neighbours(x, dim, n, scale, align)
    weight = weight.to(x.dtype)
    return a * (1 - weight) + b * weight


def _linear_uint8(x: Tensor, dim: int, n: int, scale: float | None, align: bool) -> Tensor:
    """PyTorch's numbers: weights are whole multiples of 2^-bits that fit into 16 bits, and each dim is
    rounded, halves up."""
    a, b, weight = _neighbours(x.int(), dim, n, scale, align)
    if x.is_meta:
        return (a + b).to(x.dtype)
    heaviest = float(_ops.maximum(weight, 1 - weight).max())
    bits = 15 if int(0.5 + heaviest * 2**15) < 2**15 else 14
    above, below = ((w * 2**bits + 0.5).int() for w in (weight, 1 - weight))
    return ((a * below + b * above + 2 ** (bits - 1)) >> bits).to(x.dtype)


def _warn_of(name: str) -> None:
    warnings.warn(
        f"`nn.functional.{name}` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=4
    )


def upsample(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: Any = None,
) -> Tensor:
    """interpolate under its former name."""
    _warn_of("upsample")
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """interpolate to the nearest element, under its former name."""
    _warn_of("upsample_nearest")
    return interpolate(input, size, scale_factor, mode="nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """interpolate between elements with aligned corners, under its former name."""
    _warn_of("upsample_bilinear")
    return interpolate(input, size, scale_factor, mode="bilinear", align_corners=True)
