"""Quantised values as integers and scales: torch.ops.quantized_decomposed, weights in 4 and 8 bits."""

from __future__ import annotations

import math
import typing
from typing import Any

from warptape import core as wt
from warptape import nn

from ..ao.quantization.qconfig import QConfig
from ..autograd import Function
from ..core import Tensor

# ---- torch.ops.quantized_decomposed ----------------------------------------------------------------------


def _check(input: Tensor, quant_min: int, quant_max: int, dtype: wt.dtype) -> None:
    info = wt.iinfo(dtype) if not dtype.is_floating_point else wt.finfo(dtype)
    if quant_min < info.min or quant_max > info.max:
        raise ValueError(
            f"quant_min and quant_max out of bound for target dtype, expected [{info.min}, {info.max}], got "
            f"[{quant_min}, {quant_max}]"
        )


def _encode(
    input: Tensor, scale: Tensor | float, zero: Tensor | int, low: int, high: int, dtype: wt.dtype
) -> Tensor:
    x = input.float() if input.dtype in (wt.float16, wt.bfloat16) else input
    return wt.clamp(wt.round(x * (1.0 / scale)) + zero, low, high).to(dtype)


def quantize_per_tensor(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int,
    quant_min: int,
    quant_max: int,
    dtype: wt.dtype,
) -> Tensor:
    """Codes: round(input / scale) + zero_point, clamped."""
    _check(input, quant_min, quant_max, dtype)
    return _encode(input, scale, zero_point, quant_min, quant_max, dtype)


def dequantize_per_tensor(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int,
    quant_min: int,
    quant_max: int,
    dtype: wt.dtype,
    *,
    out_dtype: wt.dtype | None = None,
) -> Tensor:
    """(codes - zero_point) * scale, float32 unless `out_dtype` is given."""
    if input.dtype != dtype:
        raise AssertionError(f"Expecting input to have dtype: {dtype}, but got {input.dtype}")
    return ((input.to(out_dtype or wt.float32) - zero_point) * scale).to(out_dtype or wt.float32)


def _along(values: Tensor, input: Tensor, axis: int) -> Tensor:
    return values.reshape([-1 if d == axis % input.ndim else 1 for d in range(input.ndim)])


def quantize_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: wt.dtype,
) -> Tensor:
    """The same with a scale and a zero point for each index along `axis`."""
    _check(input, quant_min, quant_max, dtype)
    scale, zero = (_along(v, input, axis) for v in (scales, zero_points))
    return _encode(input, scale, zero, quant_min, quant_max, dtype)


def dequantize_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: wt.dtype,
    *,
    out_dtype: wt.dtype | None = None,
) -> Tensor:
    """Values from codes with a scale and a zero point for each index along `axis`."""
    if input.dtype != dtype:
        raise AssertionError(f"Expecting input to have dtype: {dtype}, but got {input.dtype}")
    zero = 0 if zero_points is None else _along(zero_points, input, axis)
    return ((input.to(wt.float32) - zero) * _along(scales, input, axis)).to(out_dtype or wt.float32)


def choose_qparams(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: wt.dtype
) -> tuple[Tensor, Tensor]:
    """The scale and zero point by which the codes reach from the least value, or 0, to the largest, or 0."""
    low, high = (min(float(input.min()), 0.0), max(float(input.max()), 0.0)) if input.numel() else (0.0, 0.0)
    scale = max((high - low) / (quant_max - quant_min), eps)
    zero = min(max(quant_min - round(low / scale), quant_min), quant_max)
    return wt.tensor([scale], dtype=wt.float64), wt.tensor([zero], dtype=wt.int64)


def choose_qparams_symmetric(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: wt.dtype
) -> tuple[Tensor, Tensor]:
    """The same with the zero in the middle of the codes."""
    largest = float(input.abs().max()) if input.numel() else 0.0
    scale = max(largest / ((quant_max - quant_min) / 2), eps)
    zero = 0 if dtype in (wt.int8, wt.int32) else 128
    return wt.tensor([scale], dtype=wt.float64), wt.tensor([zero], dtype=wt.int64)


def check_tokens(input: Tensor, scales: Tensor, zero_points: Tensor) -> None:
    """AssertionError unless there is a scale and a zero point for each token, that is row, of `input`."""
    tokens = math.prod(input.shape[:-1])
    for name, values in (("scales", scales), ("zero_points", zero_points)):
        if values.numel() != tokens:
            raise AssertionError(f"num_tokens: {tokens} {name}: {values.size()}")


def quantize_per_channel_group(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: wt.dtype,
    group_size: int = 128,
) -> Tensor:
    """Codes of a matrix in which `group_size` numbers of a row share a scale and a zero point."""
    if group_size > input.shape[-1] and scales.shape[-1] == 1:
        group_size = input.shape[-1]
    if group_size <= 1 or input.ndim != 2 or input.shape[-1] % group_size:
        raise AssertionError(
            f"expected a matrix whose rows are groups of {group_size} numbers, more than one, got "
            f"{tuple(input.shape)}"
        )
    groups = input.reshape(-1, group_size)
    codes = _encode(groups, scales.reshape(-1, 1), zero_points.reshape(-1, 1), quant_min, quant_max, dtype)
    return codes.reshape_as(input)


# ---- products with weights in codes ----------------------------------------------------------------------


def int8pack_mm(self: Tensor, mat2: Tensor, scales: Tensor) -> Tensor:
    """self [M, K] times the transpose of int8 codes [N, K] with a scale for each row [N]."""
    if mat2.dtype != wt.int8:
        raise RuntimeError(f"_weight_int8pack_mm: expect B to be int8 tensor, got {mat2.dtype}")
    return (self @ mat2.to(self.dtype).t() * scales.to(self.dtype)).to(self.dtype)


def convert_weight_to_int4pack(self: Tensor, innerKTiles: int) -> Tensor:
    """Codes from 0 to 15, int32 [N, K], as bytes [N, K / 2] for `int4pack_mm`; the even one is the low half.

    The order of bytes is this runtime's, as PyTorch's is that of its kernel.
    """
    if self.dtype != wt.int32 or self.ndim != 2 or self.size(1) % 2:
        raise RuntimeError("_convert_weight_to_int4pack: expected int32 codes [N, K] with an even K")
    low, high = self[:, ::2].to(wt.uint8), self[:, 1::2].to(wt.uint8)
    return low | (high << 4)


def int4pack_mm(self: Tensor, mat2: Tensor, qGroupSize: int, qScaleAndZeros: Tensor) -> Tensor:
    """self [M, K] times the transpose of codes [N, K] as `convert_weight_to_int4pack` wrote them.

    A value is (code - 8) * scale + zero, by the group of its columns: qScaleAndZeros [K / group, N, 2].
    """
    codes = wt.stack([mat2 & 15, mat2 >> 4], -1).reshape(mat2.size(0), -1)
    scales, zeros = qScaleAndZeros.to(wt.float32).unbind(-1)
    groups = codes.float().reshape(codes.size(0), -1, qGroupSize) - 8
    weight = groups * scales.t().unsqueeze(-1) + zeros.t().unsqueeze(-1)
    return (self.float() @ weight.reshape(codes.shape).t()).to(self.dtype)


# ---- rounding that is learned ----------------------------------------------------------------------------


class _Learnable(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, factor: float
    ) -> Tensor:
        place = wt.clamp(wt.round(zero + 0.0), low, high)
        code = wt.round(x / scale + place)
        kept = wt.clamp(code, low, high)
        ctx.save_for_backward(x, scale, place, code, kept)
        ctx.bounds, ctx.factor = (low, high), factor
        return (kept - place) * scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,) = grads
        x, scale, place, code, kept = ctx.saved_tensors
        inside = (code >= ctx.bounds[0]) & (code <= ctx.bounds[1])
        of_scale = wt.where(inside, (kept - place) - x / scale, kept - place)
        of_zero = wt.where(inside, wt.zeros_like(x), -scale.expand_as(x))
        dims = tuple(d for d in range(x.ndim) if scale.ndim == 0 or scale.shape[d] == 1)

        def reduced(t: Tensor) -> Tensor:
            t = t * g * ctx.factor
            return (t.sum(dims, keepdim=bool(scale.ndim)) if dims else t).reshape(scale.shape)

        return g * inside, reduced(of_scale), reduced(of_zero), None, None, None


def fake_quantize_learnable_per_tensor(
    self: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    """Rounds to codes whose scale and zero point, tensors of one element, have gradients."""
    scale, zero = scale.reshape([1] * self.ndim), zero_point.reshape([1] * self.ndim)
    return _Learnable.apply(self, scale, zero, quant_min, quant_max, grad_factor)


def fake_quantize_learnable_per_channel(
    self: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    """The same with a scale and a zero point for each index along `axis`."""
    scale, zero = _along(scale, self, axis), _along(zero_point, self, axis)
    return _Learnable.apply(self, scale, zero, quant_min, quant_max, grad_factor)


# ---- configurations --------------------------------------------------------------------------------------


def qconfig_equals(q1: Any, q2: Any) -> bool:
    """Whether two configurations make observers of the same classes and settings."""
    if q1 is None or q2 is None:
        return q1 is q2
    return _made(q1.activation) == _made(q2.activation) and _made(q1.weight) == _made(q2.weight)


def _made(factory: Any) -> Any:
    inner = getattr(factory, "p", factory)
    if hasattr(inner, "func"):
        return inner.func, inner.args, sorted(inner.keywords.items(), key=lambda item: item[0])
    return inner


QConfigAny = typing.Optional[QConfig]  # noqa: UP045  (as PyTorch's)


class AffineQuantizedObserverBase(nn.Module):
    """Stands for torchao's observers where libraries test for them: none is made here."""


class UniformQuantizationObserverBase(nn.Module):
    """Stands for PyTorch's observers with even steps where libraries test for them."""
