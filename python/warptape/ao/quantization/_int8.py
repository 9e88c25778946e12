"""Layers whose inputs and results are bytes, which convert_fx puts in place of floating ones.

A value is scale * (byte - zero_point). N images, C channels, O outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from warptape import _C, nn
from warptape import core as wt
from warptape.core import Tensor

_ops: Any = _C._private
_PANEL = 16


class Coding(NamedTuple):
    """How bytes stand for values."""

    scale: float
    zero_point: int


def pack_codes(codes: Tensor) -> Tensor:
    """int8 [O, C, KH, KW] -> [ceil(O / 16), KH * KW * ceil(C / 4), 16, 4], as `_int8_conv2d` reads them."""
    padded = nn.functional.pad(codes, (0, 0, 0, 0, 0, -codes.shape[1] % 4, 0, -codes.shape[0] % _PANEL))
    outputs, channels, height, width = padded.shape
    apart = padded.reshape(outputs // _PANEL, _PANEL, channels // 4, 4, height, width)
    packed = apart.permute(0, 4, 5, 2, 1, 3).reshape(outputs // _PANEL, -1, _PANEL, 4)
    return packed.contiguous()


class Quantize(nn.Module):
    """Values to bytes; images get their channels last."""

    def __init__(self, coding: Coding) -> None:
        super().__init__()
        self.scale, self.zero_point = coding

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _ops._quantize_bytes(x.detach(), self.scale, self.zero_point, True)
        return out

    def extra_repr(self) -> str:
        return f"scale={self.scale:.6g}, zero_point={self.zero_point}"


class DeQuantize(nn.Module):
    """Bytes to values of float32."""

    def __init__(self, coding: Coding) -> None:
        super().__init__()
        self.scale, self.zero_point = coding

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() - self.zero_point) * self.scale

    extra_repr = Quantize.extra_repr


class Int8MaxPool2d(nn.Module):
    """The greatest byte of each window: that of the greatest value."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        stride = pool.kernel_size if pool.stride is None else pool.stride
        settings = (pool.kernel_size, stride, pool.padding, pool.dilation)
        self.windows = tuple((v, v) if isinstance(v, int) else tuple(v) for v in settings)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _ops._max_pool_bytes(x, *self.windows)
        return out

    def extra_repr(self) -> str:
        return "kernel_size={}, stride={}, padding={}, dilation={}".format(*self.windows)


class Int8Conv2d(nn.Module):
    """relu(conv2d(input) + bias + residual) on bytes, or without what is not there.

    What zero points and scales do to a sum of products of codes is one factor and one summand an output,
    computed once. Per-channel weights, symmetric.

    Args:
        conv: the floating layer, an nn.Conv2d or nn.Linear (a 1 x 1 convolution); codes int8 [O, C, KH, KW]
            and weight_scale [O]: its weight.
        input, output, residual: codings; without output the result is of float32.
        relu: whether what is below zero becomes zero.
    """

    packed: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(
        self,
        conv: nn.Module,
        codes: Tensor,
        weight_scale: Tensor,
        input: Coding,
        output: Coding | None,
        residual: Coding | None,
        relu: bool,
    ) -> None:
        super().__init__()
        outputs = codes.shape[0]
        self.out_channels, self.linear = outputs, isinstance(conv, nn.Linear)
        self.in_channels = codes.shape[1]
        one = (1, 1)
        self.kernel_size = tuple(codes.shape[2:])
        self.stride = one if self.linear else conv.stride
        self.padding = (0, 0) if self.linear else conv.padding
        self.dilation = one if self.linear else conv.dilation
        self.input, self.output, self.residual, self.relu = input, output, residual, relu
        out_scale, out_zero = output or (1.0, 0)
        factor = weight_scale.double() * (input.scale / out_scale)
        summand = -codes.double().flatten(1).sum(1) * input.zero_point * factor + out_zero
        if conv.bias is not None:
            summand = summand + conv.bias.detach().double() / out_scale
        self.residual_scale = residual.scale / out_scale if residual else 1.0
        if residual:
            summand = summand - residual.zero_point * self.residual_scale
        self.low = float(out_zero) if relu else (0.0 if output else float("-inf"))
        pad = (0, -outputs % _PANEL)
        self.register_buffer("packed", pack_codes(codes))
        self.register_buffer("scale", nn.functional.pad(factor, pad).float())
        self.register_buffer("bias", nn.functional.pad(summand, pad).float())

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        shape = x.shape
        if x.ndim < 2 or shape[-1 if self.linear else 1] != self.in_channels:  # words hide small differences
            raise wt.ShapeError(
                f"Int8Conv2d: expected an input of {self.in_channels} channels, got shape {tuple(shape)}"
            )
        if self.linear:
            x = x.reshape(-1, shape[-1], 1, 1)
        out: Tensor = _ops._int8_conv2d(
            x,
            self.packed,
            self.scale,
            self.bias,
            self.out_channels,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.input.zero_point,
            self.low,
            residual,
            self.residual_scale,
            self.output is None,
        )
        return out.reshape(*shape[:-1], self.out_channels) if self.linear else out

    def extra_repr(self) -> str:
        kernel = "" if self.linear else f", kernel_size={self.kernel_size}, stride={self.stride}"
        return (
            f"{self.in_channels}, {self.out_channels}{kernel}, input={tuple(self.input)}, "
            f"output={self.output and tuple(self.output)}, "
            f"residual={self.residual and tuple(self.residual)}, "
            f"relu={self.relu}"
        )
