"""Ops of PyTorch's dispatcher that the house has under other names, or as parts of an op: torch.ops.aten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.nn import functional as F

from .. import _C, amp
from ..core import Tensor

if TYPE_CHECKING:
    from warptape.core.types import Device

Few = Sequence[int]


def _gradients(output: Tensor, inputs: Sequence[Any], gradient: Tensor) -> list[Any]:
    """The gradients of those inputs that are tensors; None for the others."""
    from ..autograd import grad

    there = [t for t in inputs if t is not None]
    grads = iter(grad(output, there, gradient, allow_unused=True))
    return [None if t is None else next(grads) for t in inputs]


def _leaves(*values: Any) -> list[Any]:
    return [None if v is None else v.detach().requires_grad_() for v in values]


# ---- attention -------------------------------------------------------------------------------------------


def attention_math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Tensor | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention by plain ops: its result and the weights [.., L, S]."""
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
    weights = _scores(query, key, attn_mask, is_causal, scale).softmax(-1)
    if dropout_mask is not None:
        weights = weights.masked_fill(dropout_mask.logical_not(), 0.0)
        return (weights / (1 - dropout_p)) @ value, weights
    return F.dropout(weights, dropout_p) @ value, weights


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.size(-1)) if scale is None else scale)
    if is_causal:
        seen = wt.ones(q.size(-2), k.size(-2), dtype=wt.bool, device=q.device).tril()
        scores = scores.masked_fill(seen.logical_not(), -math.inf)
    if bias is not None:
        scores = scores.masked_fill(bias.logical_not(), -math.inf) if bias.dtype == wt.bool else scores + bias
    return scores


def _attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, p: float, causal: bool, scale: float | None
) -> Any:
    """Attention and the logarithms of the sums of exponentials, float32 [B, H, L]."""
    out = F.scaled_dot_product_attention(q, k, v, bias, p, causal, scale=scale)
    with wt.no_grad():
        logsumexp = _scores(q.float(), k.float(), bias, causal, scale).logsumexp(-1)
    return out, logsumexp


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Attention of [B, H, L, E], its logsumexp, and what PyTorch's kernel for GPUs returns besides."""
    out, logsumexp = _attention(query, key, value, None, dropout_p, is_causal, scale)
    none, seed = wt.empty(0), wt.zeros(2, dtype=wt.uint64)
    return out, logsumexp, none, none, query.size(-2), key.size(-2), seed, none, none


def efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """Attention of [B, H, L, E], its logsumexp where it is wanted, and a seed and offset of zero."""
    out, logsumexp = _attention(query, key, value, attn_bias, dropout_p, is_causal, scale)
    zero = wt.zeros((), dtype=wt.int64)
    return out, logsumexp if compute_log_sumexp else logsumexp[..., :0], zero, zero


def cudnn_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """As `flash_attention`, with a bias; logsumexp is [B, H, L, 1]."""
    out, logsumexp = _attention(query, key, value, attn_bias, dropout_p, is_causal, scale)
    none, zero = wt.empty(0), wt.zeros((), dtype=wt.int64)
    return out, logsumexp.unsqueeze(-1), none, none, query.size(-2), key.size(-2), zero, zero, none


def flash_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor | None,
    philox_offset: Tensor | None,
    *,
    scale: float | None = None,
) -> list[Any]:
    """The gradients of query, key and value. NotImplementedError with dropout, whose mask is not kept."""
    return _attention_backward(grad_out, (query, key, value), None, dropout_p, is_causal, scale)


def cudnn_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor | None,
    philox_offset: Tensor | None,
    attn_bias: Tensor | None,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> list[Any]:
    """As `flash_attention_backward`."""
    return _attention_backward(grad_out, (query, key, value), attn_bias, dropout_p, is_causal, scale)


def _attention_backward(
    grad_out: Tensor, qkv: Sequence[Tensor], bias: Tensor | None, p: float, causal: bool, scale: float | None
) -> list[Any]:
    if p:
        raise NotImplementedError("the gradient of attention with dropout: call attention on the tape")
    with wt.enable_grad():
        inputs = _leaves(*qkv)
        q, k, v = inputs
        out = F.scaled_dot_product_attention(q, k, v, bias, 0.0, causal, scale=scale)
    return _gradients(out, inputs, grad_out)


# ---- convolutions and norms ------------------------------------------------------------------------------


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm, and the mean and 1 / deviation that it took; none outside of training."""
    out = F.batch_norm(input, mean, var, weight, bias, training, momentum, eps)
    if not training:
        return out, input.new_empty(0), input.new_empty(0)
    x = input.detach().float() if input.dtype in (wt.bfloat16, wt.float16) else input.detach()
    dims = (0, *range(2, input.ndim))
    return out, x.mean(dims), (x.var(dims, correction=0) + eps).rsqrt()


def native_batch_norm_legit(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: Any,
    *more: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm with its statistics; without running ones the arguments are one to the left by two."""
    if isinstance(running_mean, bool):  # the overload without running statistics
        return _batch_norm(input, weight, bias, None, None, running_mean, running_var, training)
    momentum, eps = more
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def native_batch_norm_no_training(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm by running statistics."""
    return _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)


def gpu_batch_norm(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> tuple[Tensor, ...]:
    """Batch norm by the arguments of cudnn_batch_norm and miopen_batch_norm."""
    momentum, eps = exponential_average_factor, epsilon
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def cudnn_batch_norm(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """The same with the reserve that cuDNN returns, which is empty."""
    return *gpu_batch_norm(*args, **kwargs), wt.empty(0, dtype=wt.uint8)


def fused_rms_norm(
    input: Tensor, normalized_shape: Few, weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """rms_norm, and 1 / the root of the mean square that it took."""
    out = F.rms_norm(input, [*normalized_shape], weight, eps)
    x = input.detach().float() if input.dtype in (wt.bfloat16, wt.float16) else input.detach()
    eps = wt.finfo(x.dtype).eps if eps is None else eps
    dims = tuple(range(-len(normalized_shape), 0))
    return out, ((x * x).mean(dims, keepdim=True) + eps).rsqrt()


def fused_rms_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Few,
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Any, Any]:
    """The gradients of rms_norm's input and weight, by its second result."""
    dims = tuple(range(-len(normalized_shape), 0))
    x = input.to(rstd.dtype) * rstd
    g = grad_out.to(rstd.dtype)
    scaled = g if weight is None else g * weight.to(rstd.dtype)
    grad_input = (rstd * (scaled - x * (scaled * x).mean(dims, keepdim=True))).to(input.dtype)
    rows = tuple(range(input.ndim - len(normalized_shape)))
    wanted = output_mask[1] and weight is not None
    grad_weight = ((g * x).sum(rows) if rows else g * x).to(weight.dtype) if wanted else None  # type: ignore[union-attr]
    return grad_input if output_mask[0] else None, grad_weight


# ---- checks ----------------------------------------------------------------------------------------------


def assert_scalar(self: Any, assert_msg: str) -> None:
    """RuntimeError with the text unless `self` is true."""
    if not self:
        raise RuntimeError(assert_msg)


def assert_tensor_metadata(
    a: Tensor,
    size: Any = None,
    stride: Any = None,
    dtype: wt.dtype | None = None,
    *,
    device: Device = None,
    layout: wt.layout | None = None,
) -> None:
    """RuntimeError where the tensor has other sizes, strides, dtype, device or layout than are given."""
    facts = {"sizes": tuple(a.shape), "strides": tuple(a.stride()), "dtype": a.dtype}
    facts |= {"device": a.device, "layout": a.layout}
    wanted = {"sizes": size, "strides": stride, "dtype": dtype, "device": device, "layout": layout}
    for what, want in wanted.items():
        want = tuple(want) if what in ("sizes", "strides") and want is not None else want
        if what == "device" and want is not None:
            want = _C.device(want)  # type: ignore[arg-type]
        if want is not None and want != facts[what]:
            raise RuntimeError(
                f"Tensor {what} mismatch! Expected: {_listed(want)}, Got: {_listed(facts[what])}"
            )


def _listed(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def constrain_range_for_size(size: Any, min: int | None = None, max: int | None = None) -> None:
    """RuntimeError unless min <= size <= max."""
    if not (min or 0) <= size or (max is not None and size > max):
        raise RuntimeError(f"Invalid value range for {size} between [{min or 0}, {max}].")


def is_all_true(self: Tensor) -> Tensor:
    """all() of a tensor of truth values."""
    if self.dtype != wt.bool:
        raise RuntimeError("_is_all_true: expected a tensor of dtype torch.bool")
    return self.all()


# ---- the rest --------------------------------------------------------------------------------------------


def slice_copy(
    self: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A copy of a slice along a dim."""
    return self[(slice(None),) * (dim % self.ndim) + (slice(start, end, step),)].clone()


def unsafe_index(self: Tensor, indices: Sequence[Any]) -> Tensor:
    """self[indices], None for a whole dim."""
    return self[tuple(slice(None) if i is None else i for i in indices)]


def upsample_bilinear2d(
    input: Tensor,
    output_size: Sequence[int] | None,
    align_corners: bool,
    scales: Any = None,
    scales_w: Any = None,
) -> Tensor:
    """Bilinear interpolation to a size, or by two factors."""
    if output_size is not None:
        return F.interpolate(input, [*output_size], mode="bilinear", align_corners=align_corners)
    return F.interpolate(input, scale_factor=scales, mode="bilinear", align_corners=align_corners)


def convert_element_type(a: Tensor, dtype: wt.dtype) -> Tensor:
    """A copy in another dtype."""
    return a.to(dtype)


def layout(a: Tensor) -> Any:
    """The tensor's layout."""
    return a.layout


def chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int, *, out: Tensor | None = None) -> Tensor:
    """Cuts each tensor into chunks along `dim`, flattens each from there on, and joins chunks of one number.

    A dim that does not divide is filled up with zeros.
    """
    if not tensors:
        raise RuntimeError("_chunk_cat expects a non-empty input tensor list")
    if num_chunks < 1:
        raise RuntimeError("_chunk_cat expects positive num_chunks")
    rows = []
    for t in tensors:
        d = dim % t.ndim
        short = -t.size(d) % num_chunks
        t = F.pad(t, [0, 0] * (t.ndim - d - 1) + [0, short]) if short else t
        rows.append(t.reshape(*t.shape[:d], num_chunks, -1))
    return wt.cat(rows, d + 1) if out is None else wt.cat(rows, d + 1, out=out)


def has_compatible_shallow_copy_type(input: Tensor, from_: Tensor) -> bool:
    """Whether one may take the other's data in its place: both are dense, or both are sparse."""
    return (input.layout == wt.strided) == (from_.layout == wt.strided)


def as_tensor_fullprec(t: object) -> Tensor:
    """A number as a tensor of float64, int64 or bool."""
    kind = wt.float64 if type(t) is float else wt.int64 if type(t) is int else None
    return wt.as_tensor(t, dtype=kind)


def get_autocast_cpu_dtype() -> Any:
    """The older name of get_autocast_dtype("cpu")."""
    return amp.get_autocast_dtype("cpu")


def is_autocast_cpu_enabled() -> bool:
    """The older name of is_autocast_enabled("cpu")."""
    return amp.is_autocast_enabled("cpu")
