"""Attention with the heads split in the sequence's place: one exchange before, one after.

"DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long Sequence Transformer Models",
arXiv:2309.14509, section 3.1.

Shapes: B batch, H query heads, K key heads, T tokens of the whole sequence, D head size; n ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...core import Tensor
from ...distributed import DeviceMesh
from ...distributed.functional import all_to_all
from ...nn import functional as F
from ..tensor.random import _set
from .order import by_rank, in_order, unshard_sequence
from .ring import Alone, attend, check_attention, check_mask


def _to_heads(x: Tensor, group: Any) -> Tensor:
    """[B, H, T / n, D] -> [B, H / n, T, D], the sequence in its order."""
    n = group.size()
    b, h, t, d = x.shape
    sent = x.reshape(b, n, h // n, t, d).movedim(1, 0).contiguous()  # the first dim is whom it goes to
    got = all_to_all(sent, group=group)  # and then whose it was
    return in_order(got.permute(1, 2, 0, 3, 4).reshape(b, h // n, n * t, d), 2, n)


def _to_sequence(x: Tensor, group: Any) -> Tensor:
    """[B, H / n, T, D] -> [B, H, T / n, D]."""
    n = group.size()
    b, h, t, d = x.shape
    sent = by_rank(x, 2, n).reshape(b, h, n, t // n, d).permute(2, 0, 1, 3, 4).contiguous()
    got = all_to_all(sent, group=group)
    return got.movedim(0, 1).reshape(b, n * h, t // n, d)


@contextmanager
def _shard_of_heads(rank: int, ranks: int) -> Iterator[None]:
    """Inside, attention's dropout draws for part of the heads, which may be a part of all already."""
    before = list(_set(()))
    _set((*before[:4], before[4] * ranks + rank, before[5] * ranks, *before[6:]))
    try:
        yield
    finally:
        _set(tuple(before))


def ulysses_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    mesh: DeviceMesh,
) -> Tensor:
    """scaled_dot_product_attention of a sequence that the ranks of a mesh share, each with part of the heads.

    Args:
        query, key, value: [B, H, T / n, D], [B, K, T / n, D], [B, K, T / n, E]: this rank's slices, as
            shard_sequence cuts them. Shapes are the same on every rank.
        attn_mask: as ring_attention's; each rank then has the whole of it.
        dropout_p: each rank draws for its heads what one process would.
        mesh: of one axis; each of its ranks calls this.

    Returns: this rank's rows of the output, [B, H, T / n, E].
    Raises: ValueError for masks, for heads that do not divide among the ranks, and for other shapes.
    """
    group = mesh.get_group()
    n = group.size()
    what = "ulysses_attention"
    check_attention(what, query, key, value, True, enable_gqa, n)
    mask = check_mask(what, attn_mask, query, key, n)
    for t, name in ((query, "query"), (key, "key")):
        if t.shape[1] % n:
            raise ValueError(
                f"{what}: {t.shape[1]} {name} heads do not divide among {n} ranks; use ring_attention, or a "
                "number of ranks that divides them"
            )
    q, k, v = (_to_heads(t, group) for t in (query, key, value))
    if mask is not None:
        mask = unshard_sequence(mask, -1 if mask.shape[-1] == key.shape[2] else -2, group)
        mask = mask.chunk(n, 1)[group.rank()] if mask.shape[1] > 1 else mask
    with _shard_of_heads(group.rank(), n):
        if mask is not None and is_causal:  # which scaled_dot_product_attention does not take together
            return _to_sequence(attend(q, k, v, mask, dropout_p, True, scale, Alone()), group)
        out = F.scaled_dot_product_attention(
            q, k, v, mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return _to_sequence(out, group)
