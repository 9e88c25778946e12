"""Collectives as recorded ops: each is named by what it does forward and, after it, backward.

"The gradient of an all-reduce" has two meanings, so there are two functions. With f the sum of the ranks'
losses, `all_reduce_all_reduce` is right where every rank goes on with work of its own, and
`all_reduce_pass_through` where all ranks do the same work on the sum and so hold the same gradient already
(g of Megatron-LM, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.3; f there is
`pass_through_all_reduce`).

Shapes: a dim that is gathered grows by the number of ranks, one that is split or reduce-scattered shrinks by
it. Raises what warptape.distributed's collectives raise; ShapeError-like ValueErrors name a dim that does not
divide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from warptape import core as wt

from ..autograd import Function
from ..core import Tensor
from . import collectives
from .state import Group, resolve


def _summed(x: Tensor, group: Group) -> Tensor:
    out = x.detach().clone(memory_format=wt.contiguous_format)
    collectives.all_reduce(out, group=group)
    return out


def _gathered(x: Tensor, dim: int, group: Group) -> Tensor:
    """Along `dim`, the shards of all ranks in their order."""
    n = resolve(group).size()
    shards = wt.empty((n, *x.shape), dtype=x.dtype, device=x.device)
    collectives.all_gather_into_tensor(shards, x.detach(), group)
    return wt.cat(list(shards.unbind(0)), dim)


def _own_shard(x: Tensor, dim: int, group: Group) -> Tensor:
    pg = resolve(group)
    length = x.shape[dim]
    if length % pg.size():
        raise ValueError(f"dim {dim} of size {length} does not divide into {pg.size()} ranks")
    step = length // pg.size()
    return x.narrow(dim, pg.rank() * step, step)


def _split(x: Tensor, dim: int, group: Group) -> Tensor:
    return _own_shard(x, dim, group).clone(memory_format=wt.contiguous_format)


def _reduce_scattered(x: Tensor, dim: int, group: Group) -> Tensor:
    shards = x.detach().chunk(resolve(group).size(), dim)
    own = _own_shard(x, dim, group)
    out = wt.empty(own.shape, dtype=x.dtype, device=x.device)
    collectives.reduce_scatter(out, list(shards), group=group)
    return out


def _recorded(name: str, run: Callable[..., Tensor], conjugate: Callable[..., Tensor]) -> Any:
    """run(x, *how) as an op of that name, whose gradient for x is conjugate(gradient, *how)."""

    class Recorded(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *how: Any) -> Tensor:
            ctx.how = how
            return run(x, *how)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return conjugate(g, *ctx.how), *[None] * len(ctx.how)

    Recorded.__name__ = Recorded.__qualname__ = name
    return Recorded.apply


def _exchanged(
    x: Tensor, to_sizes: Sequence[int] | None, from_sizes: Sequence[int] | None, group: Group
) -> Tensor:
    rows = x.shape[0] if from_sizes is None else sum(from_sizes)
    out = wt.empty((rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
    collectives.all_to_all_single(out, x.detach().contiguous(), from_sizes, to_sizes, group)
    return out


def _broadcast(x: Tensor, src: int, group: Group) -> Tensor:
    out = x.detach().clone(memory_format=wt.contiguous_format)
    collectives.broadcast(out, group=group, group_src=src)
    return out


def _reduced(x: Tensor, dst: int, group: Group) -> Tensor:
    out = x.detach().clone(memory_format=wt.contiguous_format)
    collectives.reduce(out, group=group, group_dst=dst)
    return out if resolve(group).rank() == dst else wt.zeros_like(out)


class _SendRecv(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peer: int, tag: int, group: Group) -> Tensor:
        ctx.peer, ctx.tag, ctx.group = peer, tag, group
        ctx.like = x.detach()
        collectives.send(x.detach(), group=group, tag=tag, group_dst=peer)
        return wt.zeros((), dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        gradient = wt.empty_like(ctx.like)
        collectives.recv(gradient, group=ctx.group, tag=ctx.tag, group_src=ctx.peer)
        return gradient, None, None, None


class _RecvSend(Function):
    @staticmethod
    def forward(ctx: Any, like: Tensor, peer: int, tag: int, group: Group) -> Tensor:
        ctx.peer, ctx.tag, ctx.group = peer, tag, group
        out = wt.empty_like(like)
        collectives.recv(out, group=group, tag=tag, group_src=peer)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        collectives.send(g, group=ctx.group, tag=ctx.tag, group_dst=ctx.peer)
        return None, None, None, None


def pass_through_all_reduce(x: Tensor, group: Group = None) -> Tensor:
    """x itself; its gradient is summed over the ranks. Where a tensor that all ranks hold goes into work that
    is split between them."""
    return _pass_through_all_reduce(x, group)


def all_reduce_pass_through(x: Tensor, group: Group = None) -> Tensor:
    """The sum over the ranks; the gradient passes through. Where what all ranks do next is the same.

    Args:
        x: of the same shape on all ranks.
        group: the ranks; all if None.
    """
    return _all_reduce_pass_through(x, group)


def all_reduce_all_reduce(x: Tensor, group: Group = None) -> Tensor:
    """The sum over the ranks; so is the gradient. Where every rank has a loss of its own.

    Args:
        x: of the same shape on all ranks.
        group: the ranks; all if None.
    """
    return _all_reduce_all_reduce(x, group)


def all_gather_split(x: Tensor, dim: int = -1, group: Group = None) -> Tensor:
    """The shards of all ranks along `dim`; of the gradient, its own. Where all then do the same work.

    Args:
        x: of the same shape on all ranks.
        dim: along which the shards are joined.
        group: the ranks; all if None.
    """
    return _all_gather_split(x, dim, group)


def split_all_gather(x: Tensor, dim: int = -1, group: Group = None) -> Tensor:
    """This rank's shard along `dim`; the gradients of all shards are gathered.

    Args:
        x: the same on all ranks; the ranks' number divides its size.
        dim: along which it is divided.
        group: the ranks; all if None.
    """
    return _split_all_gather(x, dim, group)


def all_gather_reduce_scatter(x: Tensor, dim: int = 0, group: Group = None) -> Tensor:
    """The shards of all ranks along `dim`; of the summed gradients each rank gets its shard.

    Args:
        x: of the same shape on all ranks.
        dim: along which the shards are joined.
        group: the ranks; all if None.
    """
    return _all_gather_reduce_scatter(x, dim, group)


def reduce_scatter_all_gather(x: Tensor, dim: int = 0, group: Group = None) -> Tensor:
    """The sum over the ranks, of which each keeps its shard along `dim`; the gradients are gathered.

    Args:
        x: of the same shape on all ranks; their number divides its size.
        dim: along which the sum is divided.
        group: the ranks; all if None.
    """
    return _reduce_scatter_all_gather(x, dim, group)


def all_to_all(
    x: Tensor,
    to_sizes: Sequence[int] | None = None,
    from_sizes: Sequence[int] | None = None,
    group: Group = None,
) -> Tensor:
    """Rows of x go to the ranks (`to_sizes` of them each, evenly if None), rows come from them; the gradient
    takes the way back."""
    return _all_to_all(x, to_sizes, from_sizes, group)


def broadcast_reduce(x: Tensor, src: int = 0, group: Group = None) -> Tensor:
    """Rank `src` of the group's x on every rank; the gradients are summed on `src`, the others get zeros.

    Args:
        x: of the same shape on all ranks.
        src: a rank of the group.
        group: the ranks; all if None.
    """
    return _broadcast_reduce(x, src, group)


def reduce_broadcast(x: Tensor, dst: int = 0, group: Group = None) -> Tensor:
    """The sum over the ranks on rank `dst` of the group, zeros elsewhere; its gradient is broadcast.

    Args:
        x: of the same shape on all ranks.
        dst: a rank of the group.
        group: the ranks; all if None.
    """
    return _reduce_broadcast(x, dst, group)


def send_recv(x: Tensor, dst: int, tag: int = 0, group: Group = None) -> Tensor:
    """Sends x to rank `dst` of the group; backward receives its gradient from there.

    Returns a zero of no dims that carries the history: call backward() on it when `dst` calls backward.
    """
    return _SendRecv.apply(x, dst, tag, group)


def recv_send(like: Tensor, src: int, tag: int = 0, group: Group = None) -> Tensor:
    """Receives from rank `src` of the group a tensor like `like` (which must require a gradient for the way
    back to be recorded); backward sends the gradient there."""
    return _RecvSend.apply(like, src, tag, group)


# Not a view, which would keep x: tensor.redistribute.hand_over has x keep what comes out here.
_pass_through_all_reduce = _recorded(
    "PassThroughAllReduce", lambda x, group: x.detach(), all_reduce_pass_through
)
_all_reduce_pass_through = _recorded("AllReducePassThrough", _summed, pass_through_all_reduce)
_all_reduce_all_reduce = _recorded("AllReduceAllReduce", _summed, all_reduce_all_reduce)
_all_gather_split = _recorded("AllGatherSplit", _gathered, split_all_gather)
_split_all_gather = _recorded("SplitAllGather", _split, all_gather_split)
_all_gather_reduce_scatter = _recorded("AllGatherReduceScatter", _gathered, reduce_scatter_all_gather)
_reduce_scatter_all_gather = _recorded("ReduceScatterAllGather", _reduce_scattered, all_gather_reduce_scatter)
_all_to_all = _recorded("AllToAll", _exchanged, lambda g, to, from_, group: all_to_all(g, from_, to, group))
_broadcast_reduce = _recorded("BroadcastReduce", _broadcast, reduce_broadcast)
_reduce_broadcast = _recorded("ReduceBroadcast", _reduced, broadcast_reduce)
