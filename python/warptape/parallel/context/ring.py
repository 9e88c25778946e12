"""Ring attention: keys and values travel round the ranks while each computes with those it has.

"Ring Attention with Blockwise Transformers for Near-Infinite Context", arXiv:2310.01889, on the kernels of
scaled_dot_product_attention. Results for the keys of one rank are merged by their log-sum-exp; backward each
block's probabilities follow from the final one, so nothing but output and log-sum-exp is saved.

Shapes: B batch, H query heads, K key heads, T queries and S keys of a rank, D and E head sizes; n ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import warptape

from ..._tensor import Tensor
from ...amp.autocast_mode import get_autocast_dtype, is_autocast_enabled
from ...autograd import Function
from ...autograd.function import once_differentiable
from ...distributed import P2POp, all_gather_into_tensor, batch_isend_irecv, irecv, isend
from ...distributed._state import Group, resolve
from ...nn import functional as F

_forward: Any = warptape._C._private._attention_forward
_backward: Any = warptape._C._private._attention_backward
ROTATIONS = ("alltoall", "allgather")


class _Moving:
    """Tensors on their way to the next rank, and those of the rank before on theirs to this one."""

    def __init__(self, tensors: Sequence[Tensor], group: Any) -> None:
        n, rank = group.size(), group.rank()
        self.sent = [t.contiguous() for t in tensors]  # kept until they have gone
        self.received = [warptape.empty_like(t) for t in self.sent]
        sends = [P2POp(isend, t, group=group, group_peer=(rank + 1) % n) for t in self.sent]
        receives = [P2POp(irecv, t, group=group, group_peer=(rank - 1) % n) for t in self.received]
        self.works = batch_isend_irecv([*sends, *receives])

    def arrived(self) -> list[Tensor]:
        for work in self.works:
            work.wait()
        return self.received


def _blocks(tensors: Sequence[Tensor], group: Any, rotate: str) -> Iterator[tuple[int, Sequence[Tensor]]]:
    """(rank, its tensors), this rank's first, then by their distance behind it. The next are under way while
    the caller computes; with "allgather" all are there at the start."""
    n, rank = group.size(), group.rank()
    if rotate == "allgather":
        gathered = [warptape.empty((n, *t.shape), dtype=t.dtype, device=t.device) for t in tensors]
        for out, t in zip(gathered, tensors, strict=True):
            all_gather_into_tensor(out, t.contiguous(), group)
        for step in range(n):
            yield (rank - step) % n, [each[rank - step] for each in gathered]
        return
    for step in range(n):
        moving = _Moving(tensors, group) if step < n - 1 else None
        yield (rank - step) % n, tensors
        if moving is not None:
            tensors = moving.arrived()


def _seen(causal: bool, rank: int, owner: int, queries: int, keys: int) -> tuple[int, int, bool]:
    """(first query, number of keys, whether the rest is causal) of this rank's queries and the owner's keys.

    Of slices i and 2n - 1 - i on rank i: all queries see the first slice of an earlier rank and none its
    second; the second slice alone sees the keys of a later rank, and all of them. A rank's own slices lie in
    their order, so its own block is causal as it is.
    """
    if not causal or owner == rank:
        return 0, keys, causal
    return (0, keys // 2, False) if owner < rank else (queries // 2, keys, False)


def merge(out: Tensor, lse: Tensor, more: Tensor, its_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention to two sets of keys from that to each: outputs [B, H, T, E], log-sum-exps [B, H, T]."""
    share = warptape.sigmoid(its_lse - lse).unsqueeze(-1)
    return out - share * (out - more), warptape.logaddexp(lse, its_lse)


class _RingAttention(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Any, causal: bool, scale: float, rotate: str
    ) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        out: Any = None
        lse: Any = None
        for owner, (key, value) in _blocks((k, v), group, rotate):
            first, length, masked = _seen(causal, group.rank(), owner, queries, keys)
            more, its_lse = _forward(q[:, :, first:], key[:, :, :length], value[:, :, :length], masked, scale)
            if out is None:
                out, lse = more.to(its_lse.dtype), its_lse
                continue
            merged, total = merge(out[:, :, first:], lse[:, :, first:], more, its_lse)
            out[:, :, first:].copy_(merged)
            lse[:, :, first:].copy_(total)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.how = group, causal, scale, rotate
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        group, causal, scale, rotate = ctx.how
        dq = warptape.zeros(q.shape, dtype=lse.dtype, device=q.device)
        moving: Any = None
        for owner, (key, value) in _blocks((k, v), group, rotate):
            first, length, masked = _seen(causal, group.rank(), owner, q.shape[2], k.shape[2])
            gq, gk, gv = _backward(
                g[:, :, first:],
                q[:, :, first:],
                key[:, :, :length],
                value[:, :, :length],
                out[:, :, first:],
                lse[:, :, first:],
                masked,
                scale,
            )
            dq[:, :, first:].add_(gq)
            # Those of these keys that the ranks before have found: they left one step after the keys did.
            if moving is None:
                dk, dv = (warptape.zeros(t.shape, dtype=lse.dtype, device=t.device) for t in (k, v))
            else:
                dk, dv = moving.arrived()
            dk[:, :, :length].add_(gk)
            dv[:, :, :length].add_(gv)
            moving = _Moving((dk, dv), group)
        dk, dv = moving.arrived()  # home, after n hops
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


def check_attention(
    what: str, q: Tensor, k: Tensor, v: Tensor, attn_mask: Any, causal: bool, enable_gqa: bool, group: Any
) -> None:
    """Raises TypeError and ValueError for what attention between ranks does not do."""
    for t in (q, k, v):
        if not isinstance(t, warptape.Tensor):
            raise TypeError(f"{what}: expected Tensors, got {type(t).__name__}")
    if attn_mask is not None:
        raise ValueError(
            f"{what}: attn_mask is not supported, as its keys lie on other ranks; use is_causal=True or none"
        )
    shapes = f"{list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
    if any(t.ndim != 4 for t in (q, k, v)) or k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0]:
        raise ValueError(
            f"{what}: expected query [B, H, T, D], key [B, K, S, D] and value [B, K, S, E], got {shapes}"
        )
    if q.shape[1] != k.shape[1] and not (enable_gqa and q.shape[1] % k.shape[1] == 0):
        raise ValueError(
            f"{what}: {k.shape[1]} key heads for {q.shape[1]} query heads; with enable_gqa=True they may be "
            "a divisor"
        )
    if causal and (q.shape[2] != k.shape[2] or q.shape[2] % 2):
        raise ValueError(
            f"{what}: causal attention needs as many keys as queries on a rank, two slices of one size, got "
            f"{shapes}; pad the sequence to a multiple of 2 * {group.size()}"
        )


def _cast(t: Tensor) -> Tensor:
    """As autocast casts what goes into scaled_dot_product_attention."""
    kind = t.device.type
    if not is_autocast_enabled(kind) or t.dtype == warptape.float64:
        return t
    return t.to(get_autocast_dtype(kind))


def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    group: Group = None,
    rotate: str = "alltoall",
) -> Tensor:
    """scaled_dot_product_attention of a sequence that the ranks of a group share.

    Args:
        query, key, value: [B, H, T, D], [B, K, S, D], [B, K, S, E]: this rank's slices, if is_causal as
            shard_sequence cuts them. Shapes are the same on every rank.
        group: the ranks, each of which calls this. None is the default group.
        rotate: "alltoall" sends blocks from rank to rank while the block before is computed; "allgather"
            has all of them at once, in the memory of the whole sequence's keys and values.

    Returns: this rank's rows of the output, [B, H, T, E]. Gradients of gradients are not there.
    Raises: ValueError for a mask, dropout and shapes that do not fit.
    """
    pg = resolve(group)
    if rotate not in ROTATIONS:
        raise ValueError(f"ring_attention: expected rotate of {ROTATIONS}, got {rotate!r}")
    check_attention("ring_attention", query, key, value, attn_mask, is_causal, enable_gqa, pg)
    if dropout_p:
        raise ValueError(
            f"ring_attention: dropout_p={dropout_p} is not supported; use 0, or ulysses_attention"
        )
    query, key, value = (_cast(t) for t in (query, key, value))
    if pg.size() == 1:
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
    return _RingAttention.apply(query, key, value, pg, bool(is_causal), factor, rotate)
