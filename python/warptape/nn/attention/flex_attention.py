"""Attention with any modification of its scores and any mask (Dong et al., "Flex Attention: A Programming
Model for Generating Optimized Attention Kernels", 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from warptape import core as wt
from warptape.core import Tensor

from .. import functional as F
from ._block_mask import (
    _DEFAULT_SPARSE_BLOCK_SIZE,
    BlockMask,
    Modification,
    and_masks,
    create_block_mask,
    create_mask,
    evaluate,
    noop_mask,
    or_masks,
)

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "flex_attention",
    "noop_mask",
    "or_masks",
]

FlexKernelOptions = dict[str, Any]

# (score, batch, head, query, key) -> score, and (batch, head, query, key) -> bool: what annotations name.
_score_mod_signature = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
_mask_mod_signature = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class AuxRequest(NamedTuple):
    """What flex_attention returns beside its output.

    Args:
        lse: whether the logarithm of the sum of exp(scores) is wanted.
        max_scores: whether the largest score of each query is wanted.
    """

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """[B, H, T] each: the log of the sum of exp(scores), and the largest score; None where not asked for.

    B is the batch, H the heads and T the queries.
    """

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Modification | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: FlexKernelOptions | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """softmax(score_mod(query key^T * scale)) value over the keys that block_mask shows.

    query [B, H, T, D], key [B, K, S, D], value [B, K, S, E], where K is H, or divides it with enable_gqa;
    [B, H, T, E] comes back. `score_mod(score, b, h, q_idx, kv_idx)` gets the scores and the indices of their
    places as tensors that broadcast, and may read other tensors, which get gradients, too. A query that sees
    no key gets zeros. Queries are taken block by block, and blocks of keys that none of a block's batches and
    heads sees are left out. `kernel_options` are those of PyTorch's kernels and change nothing.

    Returns:
        The output; with return_lse a pair with the log of the sums [B, H, T]; with return_aux one with an
        AuxOutput.

    Raises:
        NotImplementedError: tensors of other than 4 dims.
        ValueError: sizes or dtypes that do not go together, or a block_mask of other lengths.
    """
    _check(query, key, value, enable_gqa, block_mask)
    if return_lse and return_aux is not None:
        raise ValueError("flex_attention: give return_lse or return_aux, not both")
    if score_mod is None and block_mask is None and not return_lse and return_aux is None:
        return F.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=enable_gqa)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    rows = block_mask.BLOCK_SIZE[0] if block_mask is not None else _DEFAULT_SPARSE_BLOCK_SIZE
    seen = _seen_columns(block_mask)
    parts = [
        _block(query, key, value, score_mod, block_mask, scale, start, start + rows, seen)
        for start in range(0, query.shape[2], rows)
    ]
    if not parts:
        parts = [_block(query, key, value, score_mod, None, scale, 0, 0, seen)]
    out, lse, largest = (wt.cat(list(part), 2) for part in zip(*parts))
    if return_aux is not None:
        return out, AuxOutput(lse if return_aux.lse else None, largest if return_aux.max_scores else None)
    return (out, lse) if return_lse else out


def _check(query: Tensor, key: Tensor, value: Tensor, gqa: bool, block_mask: BlockMask | None) -> None:
    if not query.ndim == key.ndim == value.ndim == 4:
        raise NotImplementedError("NYI: query, key, and value must be 4D tensors")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype}, key.dtype: {key.dtype}, and value.dtype: {value.dtype} instead."
        )
    heads, shared = query.shape[1], key.shape[1]
    if not gqa and heads != shared:
        raise ValueError(
            f"Expect query and key/value to have the same number of heads but got Hq={heads} and "
            f"Hkv={shared}. Try setting enable_gqa=True for GQA."
        )
    if gqa and (shared == 0 or heads % shared):
        raise ValueError(
            f"Expect number of query heads to be a multiple of kv heads for GQA but got Hq={heads} and "
            f"Hkv={shared}."
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "Expect query and key/value to have the same embedding dimension but got "
            f"E={query.shape[-1]} and E={key.shape[-1]}."
        )
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(
            f"flex_attention: key of {[*key.shape]} and value of {[*value.shape]} differ in a size"
        )
    if query.shape[0] != key.shape[0] and key.shape[0] != 1:
        raise ValueError(f"Expect batches of {query.shape[0]} or 1 keys, got {key.shape[0]}")
    if block_mask is not None:
        _check_mask(block_mask, query.shape, key.shape[2])


def _check_mask(block_mask: BlockMask, sizes: Any, keys: int) -> None:
    queries = sizes[2]
    for name, have, want in zip(("B", "Hq"), block_mask.shape, sizes):
        if have not in (1, want):
            raise ValueError(f"Expect block_mask and query to have the same {name}, got {have} and {want}")
    lengths = block_mask.seq_lengths
    if lengths == (queries, keys):
        return
    start = f"block_mask was created for block_mask.shape={block_mask.shape} but got q_len={queries} and "
    if queries > lengths[0] or keys > lengths[1]:
        raise ValueError(
            f"{start}kv_len={keys}. As the block mask was created for a smaller length than you're using it "
            "for, you likely need to create a new block mask."
        )
    raise ValueError(
        f"{start}kv_len={keys}. As the block mask was created for a larger length than you're using it for, "
        "you can either 1. create a new block mask with the correct length, or 2. 'adjust' the existing "
        "block mask to the correct length by calling block_mask._adjust(q_len, kv_len). This essentially "
        "'crops' the block mask to the upper left corner, which does not work for all mask_mods!"
    )


def _seen_columns(block_mask: BlockMask | None) -> tuple[Tensor, Tensor] | None:
    """Bools [B, H, rows, columns]: the blocks that are computed, and those in which mask_mod is asked."""
    if block_mask is None:
        return None
    return block_mask.to_dense().to(wt.bool), block_mask.partial_blocks()


def _block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Modification | None,
    block_mask: BlockMask | None,
    scale: float,
    start: int,
    stop: int,
    seen: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the log of the sums and the largest scores of queries start to stop."""
    stop = min(stop, query.shape[2])
    b, h, kv = (wt.arange(n, device=query.device) for n in (*query.shape[:2], key.shape[2]))
    hidden = None
    if block_mask is not None and seen is not None:
        kv, hidden = _visible(block_mask, seen, start, stop, b, h, kv)
        key, value = key.index_select(2, kv), value.index_select(2, kv)
    wide = query.dtype if query.dtype == wt.float64 else wt.float32
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query[:, :, start:stop] @ key.mT).to(wide) * scale
    if score_mod is not None:
        q = wt.arange(start, stop, device=query.device)
        scores = evaluate(score_mod, scores, tuple(scores.shape), b, h, q, kv).to(wide)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    if scores.shape[-1] == 0:
        none = scores.new_full(scores.shape[:-1], -math.inf)
        return scores.to(query.dtype) @ value, none, none
    lse = scores.logsumexp(-1)
    blind = (scores == -math.inf).all(-1)
    # The softmax of a row without keys is NaN, and so would be its gradient: its scores become zeros first.
    weights = scores.masked_fill(blind.unsqueeze(-1), 0.0).softmax(-1)
    weights = weights.masked_fill(blind.unsqueeze(-1), 0.0)
    return weights.to(query.dtype) @ value, lse, scores.amax(-1)


def _visible(
    block_mask: BlockMask,
    seen: tuple[Tensor, Tensor],
    start: int,
    stop: int,
    b: Tensor,
    h: Tensor,
    kv: Tensor,
) -> tuple[Tensor, Tensor]:
    """The keys that a row of blocks sees in any batch and head, and where [B, H, T, keys] hides one."""
    rows, columns = block_mask.BLOCK_SIZE
    computed, asked = (blocks[:, :, start // rows] for blocks in seen)
    block_of = kv // columns
    kv = kv[computed.any(0).any(0)[block_of]]
    block_of = kv // columns
    shown = computed[:, :, block_of].unsqueeze(2)
    if bool(asked.any()) and block_mask.mask_mod is not noop_mask:
        q = wt.arange(start, stop, device=kv.device)
        sizes = (block_mask.shape[0], block_mask.shape[1], stop - start, len(kv))
        visible = evaluate(block_mask.mask_mod, None, sizes, b[: sizes[0]], h[: sizes[1]], q, kv)
        shown = shown & (visible | ~asked[:, :, block_of].unsqueeze(2))
    return kv, ~shown
