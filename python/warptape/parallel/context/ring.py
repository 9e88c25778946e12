"""Ring attention: keys and values travel round the ranks while each computes with those it has.

"Ring Attention with Blockwise Transformers for Near-Infinite Context", arXiv:2310.01889, on the kernels of
scaled_dot_product_attention. Results for the keys of one rank are merged by their log-sum-exp; backward each
block's probabilities follow from the final one, so nothing but output and log-sum-exp is saved.

Shapes: B batch, H query heads, K key heads, T queries and S keys of a rank, D and E head sizes; n ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from warptape import _C
from warptape import core as wt

from ...amp.autocast_mode import get_autocast_dtype, is_autocast_enabled
from ...autograd import Function
from ...autograd.function import once_differentiable
from ...core import Tensor
from ...distributed import P2POp, all_gather_into_tensor, batch_isend_irecv, irecv, isend
from ...distributed.state import Group, resolve
from ...nn import functional as F

_forward: Any = _C._private._attention_forward
_backward: Any = _C._private._attention_backward
_draws: Any = _C._private._attention_draws
ROTATIONS = ("alltoall", "allgather")


class _Moving:
    """Tensors on their way to the next rank, and those of the rank before on theirs to this one."""

    def __init__(self, tensors: Sequence[Tensor], group: Any) -> None:
        n, rank = group.size(), group.rank()
        self.sent = [t.contiguous() for t in tensors]  # kept until they have gone
        self.received = [wt.empty_like(t) for t in self.sent]
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
        gathered = [wt.empty((n, *t.shape), dtype=t.dtype, device=t.device) for t in tensors]
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
    """Attention to two sets of keys from that to each: outputs [B, H, T, E], log-sum-exps [B, H, T], which
    are minus infinity where no key is seen."""
    share = wt.sigmoid(its_lse - lse).nan_to_num(0.0).unsqueeze(-1)
    return out - share * (out - more), wt.logaddexp(lse, its_lse)


class Alone:
    """The group of one rank that has the whole sequence.

    It lets attention of one rank take the same way as that of many.
    """

    def size(self) -> int:
        """1"""
        return 1

    def rank(self) -> int:
        """0"""
        return 0


@dataclass(frozen=True)
class _Tile:
    """A block of keys for some of the queries, and what the kernels take besides."""

    rows: slice
    columns: slice
    causal: bool
    drawn: tuple[int, ...] = ()

    def mask(self, mask: Tensor | None) -> Tensor | None:
        if mask is None:
            return None
        return mask[:, :, self.rows if mask.shape[2] > 1 else slice(None), self.columns]


@dataclass(frozen=True)
class How:
    """What attention between ranks does beside its tensors; `drawn`: _attention_draws for its dropout.

    Args:
        group: the ranks of the sequence.
        causal: whether queries see no later key.
        scale: factor on the scores.
        rotate: how keys and values travel.
        dropout_p: the probability with which a weight is zeroed.
    """

    group: Any
    causal: bool
    scale: float
    rotate: str = ROTATIONS[0]
    dropout_p: float = 0.0
    drawn: tuple[int, ...] = ()

    def tiles(self, owner: int, queries: int, keys: int) -> list[_Tile]:
        """Of this rank's queries and the owner's keys.

        Args:
            owner: the rank whose keys they are.
            queries, keys: their numbers.
        """
        n, rank = self.group.size(), self.group.rank()
        if not self.dropout_p:
            first, length, masked = _seen(self.causal, rank, owner, queries, keys)
            return [_Tile(slice(first, queries), slice(0, length), masked)]
        # Each within a slice of the sequence, whose numbers of dropout follow each other.
        out, t, s = [], queries // 2, keys // 2
        for i, j in itertools.product(range(2), range(2)):
            a, b = (2 * n - 1 - r if later else r for r, later in ((rank, i), (owner, j)))
            if b <= a or not self.causal:
                drawn = (*self.drawn, n * queries, n * keys, a * t, b * s)
                rows, columns = slice(i * t, (i + 1) * t), slice(j * s, (j + 1) * s)
                out.append(_Tile(rows, columns, self.causal and a == b, drawn))
        return out

    def mask_of(self, owner: int, mask: Tensor | None, travelled: Sequence[Tensor]) -> Tensor | None:
        """Of the owner's keys: what came with them, or its slices of a mask of all keys.

        Args:
            owner: the rank whose keys they are.
            mask: of all keys, or None.
            travelled: what came with the keys.
        """
        if travelled or mask is None:
            return travelled[0] if travelled else None
        slices = mask.chunk(2 * self.group.size(), -1)
        return wt.cat([slices[owner], slices[-1 - owner]], -1)


class _RingAttention(Function):
    """`mask` is None or of 4 dims; the last is a rank's keys, with which it travels, or all of them."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, how: How) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        moves = [k, v] if mask is None or mask.shape[-1] > keys else [k, v, mask]
        out: Any = None
        lse: Any = None
        for owner, (key, value, *travelled) in _blocks(moves, how.group, how.rotate):
            seen = how.mask_of(owner, mask, travelled)
            for tile in how.tiles(owner, queries, keys):
                rows, columns = tile.rows, tile.columns
                more, its_lse = _forward(
                    q[:, :, rows],
                    key[:, :, columns],
                    value[:, :, columns],
                    tile.causal,
                    how.scale,
                    tile.mask(seen),
                    how.dropout_p,
                    tile.drawn,
                )
                if out is None:
                    b, h, _, e = more.shape  # which lies as [B, T, H, E]
                    out = wt.zeros((b, queries, h, e), dtype=its_lse.dtype, device=q.device)
                    out = out.transpose(1, 2)
                    lse = wt.full((b, h, queries), -math.inf, dtype=its_lse.dtype, device=q.device)
                merged, total = merge(out[:, :, rows], lse[:, :, rows], more, its_lse)
                out[:, :, rows].copy_(merged)
                lse[:, :, rows].copy_(total)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse, *([] if mask is None else [mask]))
        ctx.how = how
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        q, k, v, out, lse, *masks = ctx.saved_tensors
        how, mask = ctx.how, masks[0] if masks else None
        dq = wt.zeros(q.shape, dtype=lse.dtype, device=q.device)
        moves = [k, v] if mask is None or mask.shape[-1] > k.shape[2] else [k, v, mask]
        moving: Any = None
        for owner, (key, value, *travelled) in _blocks(moves, how.group, how.rotate):
            seen = how.mask_of(owner, mask, travelled)
            grads = []
            for tile in how.tiles(owner, q.shape[2], k.shape[2]):
                rows, columns = tile.rows, tile.columns
                cut = [x[:, :, rows] for x in (g, q)] + [x[:, :, columns] for x in (key, value)]
                cut += [out[:, :, rows], lse[:, :, rows]]
                how_drawn = tile.mask(seen), how.dropout_p, tile.drawn
                gq, gk, gv = _backward(*cut, tile.causal, how.scale, *how_drawn)
                dq[:, :, rows].add_(gq)
                grads.append((columns, gk, gv))
            # Those of these keys that the ranks before have found: they left one step after the keys did.
            if moving is None:
                dk, dv = (wt.zeros(t.shape, dtype=lse.dtype, device=t.device) for t in (k, v))
            else:
                dk, dv = moving.arrived() if how.group.size() > 1 else (dk, dv)
            for columns, gk, gv in grads:
                dk[:, :, columns].add_(gk)
                dv[:, :, columns].add_(gv)
            if how.group.size() > 1:
                moving = _Moving((dk, dv), how.group)
        if moving is not None:
            dk, dv = moving.arrived()  # home, after n hops
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def check_attention(
    what: str, q: Tensor, k: Tensor, v: Tensor, causal: bool, enable_gqa: bool, ranks: int
) -> None:
    """Raises TypeError and ValueError for what attention between ranks does not do.

    Args:
        what: names the function in the error.
        q, k, v: [batch, heads, tokens, width].
        causal: whether queries see no later key.
        enable_gqa: whether keys may have fewer heads.
        ranks: how many.
    """
    for t in (q, k, v):
        if not isinstance(t, wt.Tensor):
            raise TypeError(f"{what}: expected Tensors, got {type(t).__name__}")
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
            f"{shapes}; pad the sequence to a multiple of 2 * {ranks}"
        )


def check_mask(what: str, mask: Any, q: Tensor, k: Tensor, ranks: int) -> Tensor | None:
    """The mask with 4 dims: of this rank's keys, [.., 1, S], or of its queries and all keys, [.., T, n S].
    Raises TypeError and ValueError."""
    if mask is None:
        return None
    if not isinstance(mask, wt.Tensor) or mask.requires_grad:
        raise TypeError(f"{what}: expected attn_mask to be a Tensor that needs no gradient, got {mask!r}")
    b, h, t, s = *q.shape[:3], k.shape[2]
    full = mask[(None,) * (4 - mask.ndim)] if 2 <= mask.ndim <= 4 else mask
    shape = tuple(full.shape)
    fits = mask.ndim in (2, 3, 4) and shape[0] in (1, b) and shape[1] in (1, h)
    of_own, of_all = shape[2:] == (1, s), shape[2:] in ((1, ranks * s), (t, ranks * s)) and s % 2 == 0
    if not fits or not (of_own or of_all):
        raise ValueError(
            f"{what}: expected attn_mask of this rank's keys, [.., 1, {s}], or its queries and all keys in "
            f"the order of the sequence, [.., {t}, {ranks * s}], got {list(mask.shape)}"
        )
    return full if full.dtype == wt.bool else full.to(q.dtype)


def _cast(t: Tensor) -> Tensor:
    """As autocast casts what goes into scaled_dot_product_attention."""
    kind = t.device.type
    if not is_autocast_enabled(kind) or t.dtype == wt.float64:
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
        attn_mask: of this rank's keys, [.., 1, S], as of padding: it travels with them; or of its queries and
            all keys in the order of the sequence, [.., T, n S], as of documents. It goes with is_causal.
        dropout_p: draws what one process would of a sequence that shard_sequence cut.
        group: the ranks, each of which calls this. None is the default group.
        rotate: "alltoall" sends blocks from rank to rank while the block before is computed; "allgather"
            has all of them at once, in the memory of the whole sequence's keys and values.

    Returns: this rank's rows of the output, [B, H, T, E]. Gradients of gradients are not there.
    Raises: ValueError for a mask and for shapes that do not fit.
    """
    pg = resolve(group)
    if rotate not in ROTATIONS:
        raise ValueError(f"ring_attention: expected rotate of {ROTATIONS}, got {rotate!r}")
    check_attention("ring_attention", query, key, value, is_causal, enable_gqa, pg.size())
    if dropout_p and (query.shape[2] % 2 or key.shape[2] % 2):
        raise ValueError(
            f"ring_attention: dropout needs two slices of one size on a rank, got {list(query.shape)} and "
            f"{list(key.shape)}; pad the sequence to a multiple of 2 * {pg.size()}"
        )
    query, key, value = (_cast(t) for t in (query, key, value))
    mask = check_mask("ring_attention", attn_mask, query, key, pg.size())
    if pg.size() == 1 and (mask is None or not is_causal):
        return F.scaled_dot_product_attention(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return attend(query, key, value, mask, dropout_p, is_causal, scale, pg, rotate)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    causal: bool,
    scale: float | None,
    group: Any,
    rotate: str = ROTATIONS[0],
) -> Tensor:
    """What ring_attention computes of arguments that are checked.

    Args:
        q, k, v: [batch, heads, tokens, width], this rank's slices.
        mask: of all keys, or None.
        dropout_p: the probability with which a weight is zeroed.
        causal: whether queries see no later key.
        scale: factor on the scores; 1 / sqrt(width) if None.
        group: the ranks of the sequence.
        rotate: how keys and values travel.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    drawn = tuple(_draws(q)) if dropout_p else ()
    how = How(group, bool(causal), factor, rotate, float(dropout_p), drawn)
    return _RingAttention.apply(q, k, v, mask, how)
