"""Formats of few bits with scales, emulated: what a tensor is after it was stored so.

Numbers are float8_e4m3fn, float8_e5m2 or float4_e2m1fn. Scales are float32 for a tensor or a row, or belong
to blocks of a row: powers of two (float8_e8m0fnu) in the formats of "OCP Microscaling Formats (MX)
Specification 1.0" (2023), section 6.3, and float8_e4m3fn under a float32 scale of the tensor in NVFP4
("Pretraining Large Language Models with NVFP4", NVIDIA 2025, appendix B).

Shapes: K numbers of a row, which is along the last dim; G = ceil(K / block) scales of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warptape import core as wt

from ...core import Tensor

__all__ = ["FORMATS", "Encoded", "Format", "decode", "encode", "multiply", "pack_float4", "round_to"]


@dataclass(frozen=True)
class _Element:
    """A number's format: bits of its mantissa, exponents of its least and greatest normal number."""

    mantissa: int
    least: int
    greatest: int
    largest: float
    dtype: Any  # None: four bits, of which no tensor is made


_ELEMENTS = {
    "e4m3": _Element(3, -6, 8, 448.0, wt.float8_e4m3fn),
    "e5m2": _Element(2, -14, 15, 57344.0, wt.float8_e5m2),
    "e2m1": _Element(1, 0, 2, 6.0, None),
}
_LEAST_MAXIMUM = 1e-12  # what a float32 scale takes a smaller maximum for
_LEAST_SCALE = 2.0**-6  # of NVFP4's blocks: the least normal float8_e4m3fn


@dataclass(frozen=True)
class Format:
    """How numbers and their scales are stored.

    Args:
        element: "e4m3", "e5m2" or "e2m1".
        scale: "float32", "e8m0" or "e4m3".
        block: numbers that share a scale; 0: a row; None: the tensor.
        up: an "e8m0" scale is the least power of two under which nothing saturates. Otherwise it is the
            specification's, 2 ** (floor(log2(greatest magnitude)) - emax), under which some may.

    Raises:
        ValueError: a name that is not known, or a scale that blocks of this size do not have.
    """

    element: str
    scale: str = "float32"
    block: int | None = None
    up: bool = False

    def __post_init__(self) -> None:
        if self.element not in _ELEMENTS:
            raise ValueError(f"Format: element must be one of {', '.join(_ELEMENTS)}, got {self.element!r}")
        if self.scale not in ("float32", "e8m0", "e4m3"):
            raise ValueError(f"Format: scale must be float32, e8m0 or e4m3, got {self.scale!r}")
        if (self.scale != "float32") != bool(self.block) or (self.block or 0) < 0:
            raise ValueError(
                f"Format: a scale of {self.scale} belongs to "
                f"{'a row (block=0) or a tensor (None)' if self.scale == 'float32' else 'blocks'}, got "
                f"block={self.block}"
            )
        if self.up and self.scale != "e8m0":
            raise ValueError(f"Format: only e8m0 scales are rounded up, got scale={self.scale!r}")

    @property
    def largest(self) -> float:
        """The greatest number, before it is scaled."""
        return _ELEMENTS[self.element].largest


#: By name: float8 with one scale, with a scale a row, and the formats of blocks.
FORMATS = {
    "float8_e4m3fn": Format("e4m3"),
    "float8_e5m2": Format("e5m2"),
    "float8_e4m3fn_rows": Format("e4m3", block=0),
    "float8_e5m2_rows": Format("e5m2", block=0),
    "mxfp8_e4m3": Format("e4m3", "e8m0", 32),
    "mxfp8_e5m2": Format("e5m2", "e8m0", 32),
    "mxfp4": Format("e2m1", "e8m0", 32),
    "nvfp4": Format("e2m1", "e4m3", 16),
}


def format_of(format: Format | str) -> Format:
    """A format, by its name in FORMATS too.

    Args:
        format: or a name.

    Raises:
        ValueError: a name that is not known.
    """
    if isinstance(format, Format):
        return format
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; there are {', '.join(FORMATS)}")
    return FORMATS[format]


@dataclass(frozen=True)
class Encoded:
    """A tensor as it is stored.

    Attributes:
        numbers: [*, K], float8, or codes of float4_e2m1fn in uint8, sign in bit 3.
        scales: float32 [] or [*, 1]; float8_e8m0fnu or float8_e4m3fn [*, G].
        whole: the float32 scale of the tensor by which the scales of "e4m3" are multiplied, else None.
        saturated: how many numbers were clamped to the greatest.
        format: of all that.
    """

    numbers: Tensor
    scales: Tensor
    whole: Tensor | None
    saturated: int
    format: Format


# ---- numbers --------------------------------------------------------------------------------------------


def _exponent(x: Tensor) -> Tensor:
    """floor(log2(x)) of positive float32s; -127 below the least normal one, 128 of infinity and NaN."""
    return ((x.view(wt.int32) >> 23) & 255) - 127


def _power(exponent: Tensor) -> Tensor:
    """2 ** exponent in float32; from -127 to 127, NaN for 128."""
    return (exponent + 127).to(wt.uint8).view(wt.float8_e8m0fnu).float()


def _nearest(x: Tensor, element: _Element, noise: Tensor | None) -> Tensor:
    """The nearest number of a format to each of float32s [*], ties to even; with noise in [0, 1) the lower or
    the upper one, so that the mean is x."""
    magnitude = x.abs().clamp(max=element.largest)
    if noise is None and element.dtype is not None:
        return magnitude.to(element.dtype).float().copysign(x)
    step = _power(_exponent(magnitude).clamp(min=element.least) - element.mantissa)
    steps = magnitude / step
    steps = steps.round() if noise is None else (steps + noise).floor()
    return (steps * step).clamp(max=element.largest).copysign(x)


def _float4_codes(values: Tensor) -> Tensor:
    """uint8 codes of what _nearest gave: 0, 0.5, 1, 1.5, 2, 3, 4, 6 are 0 to 7; 8 is added below zero."""
    m = values.abs()
    codes = wt.where(m < 2, 2 * m, wt.where(m < 4, m + 2, m / 2 + 4)).to(wt.uint8)
    return codes + 8 * values.signbit().to(wt.uint8)


def _float4_values(codes: Tensor) -> Tensor:
    table = wt.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=codes.device)
    signed = wt.cat([table, -table])
    return signed[codes.long()]


def pack_float4(codes: Tensor) -> Tensor:
    """Two codes in a byte, the first in the low half, as bytes of `float4_e2m1fn_x2` are.

    Args:
        codes: uint8 [*, K] below 16.

    Raises:
        ValueError: K is odd, or no uint8.

    Example::

        >>> from warptape.ao import low_precision
        >>> low_precision.pack_float4(torch.tensor([1, 2, 3, 4], dtype=torch.uint8))
        tensor([33, 67], dtype=torch.uint8)
    """
    if codes.dtype != wt.uint8 or codes.ndim == 0 or codes.shape[-1] % 2:
        raise ValueError(
            f"pack_float4: expected an even number of uint8 codes in a row, got {codes.dtype} of shape "
            f"{tuple(codes.shape)}"
        )
    return codes[..., ::2] | (codes[..., 1::2] << 4)


# ---- scales ---------------------------------------------------------------------------------------------


def _blocks(x: Tensor, block: int) -> Tensor:
    """[*, K] as [*, G, block], the last one filled up with zeros."""
    missing = -x.shape[-1] % block
    if missing:
        x = wt.cat([x, x.new_zeros(*x.shape[:-1], missing)], -1)
    return x.reshape(*x.shape[:-1], -1, block)


def _spread(scales: Tensor, block: int, size: int) -> Tensor:
    """[*, G] as [*, K]."""
    return scales.repeat_interleave(block, -1).narrow(-1, 0, size)


def _float_scales(x: Tensor, format: Format) -> tuple[Tensor, Tensor]:
    """The scales, and what the numbers are multiplied by: the greatest magnitude becomes the greatest
    number."""
    most = x.abs().amax(-1, keepdim=True) if format.block == 0 else x.abs().amax()
    factor = (format.largest / most.double().clamp(min=_LEAST_MAXIMUM)).float()
    return factor.reciprocal(), factor


def _power_scales(most: Tensor, format: Format) -> Tensor:
    element = _ELEMENTS[format.element]
    if format.up:
        wanted = most / element.largest
        exponent = _exponent(wanted) + ((wanted.view(wt.int32) & 0x7FFFFF) != 0).int()
        exponent = exponent.clamp(-127, 127)
    else:
        exponent = (_exponent(most) - element.greatest).clamp(min=-127)
    exponent = wt.where(most.isfinite(), exponent, wt.full_like(exponent, 128))
    return (exponent + 127).to(wt.uint8).view(wt.float8_e8m0fnu)


def _nv_scales(most: Tensor, format: Format) -> tuple[Tensor, Tensor]:
    """The scales of the blocks, and the tensor's, under which the greatest of them is 448."""
    tensor_scale = most.amax() / (448.0 * format.largest)
    tensor_scale = wt.where(tensor_scale == 0, wt.ones_like(tensor_scale), tensor_scale)
    scales = (most / format.largest / tensor_scale).clamp(_LEAST_SCALE, 448.0)
    return scales.to(wt.float8_e4m3fn), tensor_scale


# ---- tensors --------------------------------------------------------------------------------------------


def encode(x: Tensor, format: Format | str, *, noise: Tensor | None = None) -> Encoded:
    """A tensor in a format, scales along its last dim. Numbers that are too large are clamped.

    Args:
        x: [*, K], floating point.
        format: or its name in FORMATS.
        noise: [*, K] in [0, 1), for rounding at random; without it to the nearest, ties to even.

    Raises:
        ValueError: a name that is not known, a tensor that has no numbers or is not floating point.

    Example::

        >>> from warptape.ao import low_precision
        >>> stored = low_precision.encode(torch.tensor([1.0, 2.6, -9.0]), "mxfp4")
        >>> stored.numbers, stored.scales.float()
        (tensor([ 1,  3, 14], dtype=torch.uint8), tensor([2.]))
    """
    format = format_of(format)
    if not x.dtype.is_floating_point or x.ndim == 0 or x.numel() == 0:
        raise ValueError(f"encode: expected rows of floating-point numbers, got {x.dtype} {tuple(x.shape)}")
    element, x, tensor_scale = _ELEMENTS[format.element], x.detach().float(), None
    if not format.block:
        scales, factor = _float_scales(x, format)
        scaled = x * factor
    else:
        most = _blocks(x, format.block).abs().amax(-1)
        if format.scale == "e8m0":
            scales = _power_scales(most, format)
            scaled = x / _spread(scales.float(), format.block, x.shape[-1])
        else:
            scales, tensor_scale = _nv_scales(most, format)
            scaled = x * _spread(tensor_scale.reciprocal() / scales.float(), format.block, x.shape[-1])
    values = _nearest(scaled, element, noise)
    numbers = _float4_codes(values) if element.dtype is None else values.to(element.dtype)
    return Encoded(numbers, scales, tensor_scale, int((scaled.abs() > element.largest).sum()), format)


def decode(stored: Encoded) -> Tensor:
    """What is stored, in float32 [*, K].

    Args:
        stored: of `encode`.
    """
    numbers = stored.numbers
    values = _float4_values(numbers) if numbers.dtype == wt.uint8 else numbers.float()
    if not stored.format.block:
        return values * stored.scales
    scales = stored.scales.float()
    if stored.whole is not None:
        scales = stored.whole * scales
    return values * _spread(scales, stored.format.block, values.shape[-1])


def round_to(x: Tensor, format: Format | str, dim: int = -1, *, noise: Tensor | None = None) -> Tensor:
    """A tensor as it is after it was stored in a format, in float32. It has no gradient.

    Args:
        x: floating point.
        format: or its name in FORMATS.
        dim: along which rows and blocks lie.
        noise: as in `encode`, of x's shape.

    Raises:
        ValueError: as in `encode`.

    Example::

        >>> from warptape.ao import low_precision
        >>> low_precision.round_to(torch.tensor([1.0, 2.6, -9.0]), "mxfp4")
        tensor([ 1.,  3., -8.])
    """
    along = x.movedim(dim, -1).contiguous()
    noise = None if noise is None else noise.movedim(dim, -1)
    return decode(encode(along, format, noise=noise)).movedim(-1, dim)


def multiply(a: Encoded, b: Encoded) -> Tensor:
    """a @ b.T with sums in float32, [M, N]. Products of float8 are those of `torch._scaled_mm`.

    Args:
        a: [M, K]
        b: [N, K]

    Raises:
        ValueError: other shapes.

    Example::

        >>> from warptape.ao import low_precision
        >>> a, b = (low_precision.encode(torch.eye(32) * n, "nvfp4") for n in (2, 3))
        >>> low_precision.multiply(a, b).diagonal().unique()
        tensor([6.])
    """
    shapes = a.numbers.shape, b.numbers.shape
    if any(len(s) != 2 for s in shapes) or shapes[0][1] != shapes[1][1]:
        raise ValueError(
            f"multiply: expected [M, K] and [N, K], got {tuple(shapes[0])} and {tuple(shapes[1])}"
        )
    if a.format.block or b.format.block or a.format.block != b.format.block:
        return decode(a) @ decode(b).T
    scales = a.scales, b.scales.T if b.scales.ndim else b.scales
    return wt._scaled_mm(a.numbers, b.numbers.T, *scales, out_dtype=wt.float32)
