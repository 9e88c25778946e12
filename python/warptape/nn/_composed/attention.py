"""Attention of several heads ("Attention Is All You Need", section 3.2.2), with projections and masks.

Legend: N batch, H heads, T queries, S keys, E embedding, D = E / H. Sequences come as [T, N, E], or as
[N, T, E] where `batch_dim` is 0.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import warptape
from warptape import _C, Tensor

__all__ = ["multi_head_attention_forward"]


def additive_mask(
    mask: Tensor | None, name: str, other: Tensor | None, other_name: str, dtype: Any
) -> Tensor | None:
    """The mask as numbers to add to the scores: minus infinity where a bool mask is True."""
    if mask is None:
        return None
    if mask.dtype != _C.bool and not mask.is_floating_point():
        raise AssertionError(f"only bool and floating types of {name} are supported")
    if other is not None and mask.dtype != other.dtype:
        warnings.warn(
            f"Support for mismatched {name} and {other_name} is deprecated. Use same type for both instead.",
            stacklevel=3,
        )
    if mask.is_floating_point():
        return mask
    return warptape.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, -math.inf)


def _check_dims(
    query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, mask: Tensor | None
) -> bool:
    """Whether there is a batch; AssertionError unless all have as many dims as the query asks for."""
    if query.dim() not in (2, 3):
        raise AssertionError(
            f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D query tensor"
        )
    dims = query.dim()
    start = f"For {'batched' if dims == 3 else 'unbatched'} ({dims}-D) `query`, expected "
    if key.dim() != dims or value.dim() != dims:
        raise AssertionError(
            f"{start}`key` and `value` to be {dims}-D but found {key.dim()}-D and {value.dim()}-D tensors "
            "respectively"
        )
    if padding is not None and padding.dim() != dims - 1:
        raise AssertionError(
            f"{start}`key_padding_mask` to be `None` or {dims - 1}-D but found {padding.dim()}-D tensor "
            "instead"
        )
    if mask is not None and mask.dim() not in (2, 3):
        raise AssertionError(
            f"{start}`attn_mask` to be `None`, 2-D or 3-D but found {mask.dim()}-D tensor instead"
        )
    return dims == 3


def _check_sizes(
    query: Tensor, key: Tensor, value: Tensor, embed: int, expected: int, heads: int, separate: bool
) -> None:
    if embed != expected:
        raise AssertionError(f"was expecting embedding dimension of {expected}, but got {embed}")
    if embed % heads:
        raise AssertionError(f"embed_dim {embed} not divisible by num_heads {heads}")
    if separate and key.shape[:2] != value.shape[:2]:
        raise AssertionError(
            f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}"
        )
    if not separate and key.shape != value.shape:
        raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")


def _projected(q: Tensor, k: Tensor, v: Tensor, weights: Any, bias: Tensor | None) -> Any:
    """Queries, keys and values through their weights: one [3E, E], or three of which each has its input's
    width. One product serves all that come from the same tensor."""
    linear, embed = _C._nn.linear, q.shape[-1]
    if isinstance(weights, tuple):
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        return [linear(x, w, b) for x, w, b in zip((q, k, v), weights, biases, strict=True)]
    if q is k is v:
        return linear(q, weights, bias).chunk(3, -1)
    rows = [(q, 0, 1), (k, 1, 3)] if k is v else [(q, 0, 1), (k, 1, 2), (v, 2, 3)]
    found: list[Tensor] = []
    for x, begin, end in rows:
        part = slice(begin * embed, end * embed)
        out = linear(x, weights[part], None if bias is None else bias[part])
        found += out.chunk(end - begin, -1)
    return found


def _split(x: Tensor, heads: int, batch_dim: int) -> Tensor:
    """[T, N, E] or [N, T, E] -> [N, H, T, D]."""
    first, second, embed = x.shape
    x = x.reshape(first, second, heads, embed // heads)
    return x.permute(batch_dim, 2, 1 - batch_dim, 3)


def _longer(masks: list[Tensor | None]) -> list[Tensor | None]:
    """The masks for one key more, which all see."""
    return [None if m is None else warptape.nn.functional.pad(m, (0, 1)) for m in masks]


def _merged(mask: Tensor | None, padding: Tensor | None, sizes: tuple[int, int, int, int]) -> Tensor | None:
    """Both masks as one that broadcasts to the scores [N, H, T, S]."""
    batch, heads, queries, keys = sizes
    if mask is not None:
        wanted = (queries, keys) if mask.dim() == 2 else (batch * heads, queries, keys)
        if mask.shape != wanted:
            raise RuntimeError(
                f"The shape of the {mask.dim()}D attn_mask is {mask.shape}, but should be {wanted}."
            )
        mask = mask if mask.dim() == 2 else mask.reshape(sizes)
    if padding is None:
        return mask
    if padding.shape != (batch, keys):
        which = 0 if padding.shape[0] != batch else 1
        raise AssertionError(
            f"Expected key_padded_mask.shape[{which}] to be {(batch, keys)[which]}, "
            f"but got {padding.shape[which]}"
        )
    padding = padding.reshape(batch, 1, 1, keys)
    return padding if mask is None else mask + padding


def _static(given: Tensor, name: str, projected: Tensor) -> Tensor:
    """Keys or values [N * H, S, D] that stand in for projected ones, as [N, H, S, D]."""
    batch, heads, _, size = projected.shape
    for dim, wanted in ((0, batch * heads), (2, size)):
        if given.shape[dim] != wanted:
            raise AssertionError(f"expecting {name}.size({dim}) of {wanted}, but got {given.shape[dim]}")
    return given.reshape(batch, heads, given.shape[1], size)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    weights: Any,
    in_proj_bias: Tensor | None,
    bias_kv: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj: Any,
    key_padding_mask: Tensor | None,
    need_weights: bool,
    attn_mask: Tensor | None,
    static: Any,
    average_attn_weights: bool,
    is_causal: bool,
    batch_dim: int,
) -> tuple[Tensor, Tensor | None]:
    """`multi_head_attention_forward` for a batch in dim 0 or 1; dropout is on where `dropout_p` is not 0."""
    batched = _check_dims(query, key, value, key_padding_mask, attn_mask)
    padding = additive_mask(key_padding_mask, "key_padding_mask", attn_mask, "attn_mask", query.dtype)
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    is_causal = is_causal and padding is None and not need_weights
    mask = None if is_causal else additive_mask(attn_mask, "attn_mask", None, "", query.dtype)
    if not batched:
        same = (key is query, value is key)
        query = query.unsqueeze(batch_dim)
        key = query if same[0] else key.unsqueeze(batch_dim)
        value = key if same[1] else value.unsqueeze(batch_dim)
        padding = None if padding is None else padding.unsqueeze(0)
    _check_sizes(
        query, key, value, query.shape[-1], embed_dim_to_check, num_heads, isinstance(weights, tuple)
    )
    q, k, v = _projected(query, key, value, weights, in_proj_bias)
    masks = [mask, padding]
    if bias_kv[0] is not None and bias_kv[1] is not None:
        row = [1, 1, -1]
        row[batch_dim] = k.shape[batch_dim]
        k, v = (warptape.cat([x, b.expand(row)], 1 - batch_dim) for x, b in zip((k, v), bias_kv, strict=True))
        masks = _longer(masks)
    q, k, v = (_split(x, num_heads, batch_dim) for x in (q, k, v))
    if static[0] is not None:
        k = _static(static[0], "static_k", k)
    if static[1] is not None:
        v = _static(static[1], "static_v", v)
    if add_zero_attn:
        zeros = k.new_zeros((*k.shape[:2], 1, k.shape[3]))
        k, v, masks = warptape.cat([k, zeros], 2), warptape.cat([v, zeros], 2), _longer(masks)
    merged = _merged(masks[0], masks[1], (q.shape[0], num_heads, q.shape[2], k.shape[2]))
    out, probabilities = _weighed(q, k, v, merged, dropout_p, is_causal, need_weights)
    out = out.permute((0, 2, 1, 3) if batch_dim == 0 else (2, 0, 1, 3)).flatten(2)
    out = _C._nn.linear(out, *out_proj)
    if probabilities is not None and average_attn_weights:
        probabilities = probabilities.mean(1)
    if not batched:
        out = out.squeeze(batch_dim)
        probabilities = None if probabilities is None else probabilities.squeeze(0)
    return out, probabilities


def _weighed(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, causal: bool, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """[N, H, T, D] and, where they are wanted, the probabilities [N, H, T, S]."""
    if not need_weights:
        attention = _C._nn.scaled_dot_product_attention
        return attention(q, k, v, attn_mask=mask, dropout_p=dropout_p, is_causal=causal), None
    scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)
    probabilities = warptape.softmax(scores if mask is None else scores + mask, -1)
    if dropout_p > 0.0:
        probabilities = _C._nn.dropout(probabilities, dropout_p, True)
    return probabilities @ v, probabilities


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What `nn.MultiheadAttention` computes, from given weights.

    query [T, N, E], key [S, N, K], value [S, N, V], or all without N; in_proj_weight [3E, E] or three of
    [E, E], [E, K], [E, V]; in_proj_bias [3E]; bias_k, bias_v [1, 1, E] one more key and value; static_k,
    static_v [N * H, S, D] in place of the projected. key_padding_mask [N, S] and attn_mask [T, S] or
    [N * H, T, S] are bool, True to hide, or are added to the scores. Returns [T, N, E] and, with
    `need_weights`, the probabilities [N, T, S], or [N, H, T, S] unless averaged over the heads. `is_causal`
    says of attn_mask that it hides the later keys, so that it need not be read.
    """
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    for name, weight in zip("qkv", separate, strict=True):
        if use_separate_proj_weight and weight is None:
            raise AssertionError(f"use_separate_proj_weight is True but {name}_proj_weight is None")
    if not use_separate_proj_weight and in_proj_weight is None:
        raise AssertionError("use_separate_proj_weight is False but in_proj_weight is None")
    return attend(
        query,
        key,
        value,
        embed_dim_to_check,
        num_heads,
        separate if use_separate_proj_weight else in_proj_weight,
        in_proj_bias,
        (bias_k, bias_v),
        add_zero_attn,
        dropout_p if training else 0.0,
        (out_proj_weight, out_proj_bias),
        key_padding_mask,
        need_weights,
        attn_mask,
        (static_k, static_v),
        average_attn_weights,
        is_causal,
        1,
    )
