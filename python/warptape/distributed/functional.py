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

from collections.abc import Sequence
from typing import Any

import warptape

from .._tensor import Tensor
from ..autograd import Function
from . import collectives
from ._state import Group, resolve


def _summed(x: Tensor, group: Any) -> Tensor:
    out = x.detach().clone(memory_format=warptape.contiguous_format)
    collectives.all_reduce(out, group=group)
    return out


def _gathered(x: Tensor, dim: int, group: Any) -> Tensor:
    """Along `dim`, the parts of all ranks in their order."""
    n = resolve(group).size()
    parts = warptape.empty((n, *x.shape), dtype=x.dtype, device=x.device)
    collectives.all_gather_into_tensor(parts, x.detach(), group)
    return warptape.cat(list(parts.unbind(0)), dim)


def _own_part(x: Tensor, dim: int, group: Any) -> Tensor:
    pg = resolve(group)
    length = x.shape[dim]
    if length % pg.size():
        raise ValueError(f"dim {dim} of size {length} does not divide into {pg.size()} ranks")
    step = length // pg.size()
    return x.narrow(dim, pg.rank() * step, step)


def _reduce_scattered(x: Tensor, dim: int, group: Any) -> Tensor:
    parts = x.detach().chunk(resolve(group).size(), dim)
    own = _own_part(x, dim, group)
    out = warptape.empty(own.shape, dtype=x.dtype, device=x.device)
    collectives.reduce_scatter(out, list(parts), group=group)
    return out


class _PassThroughAllReduce(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return all_reduce_pass_through(g, ctx.group), None


class _AllReducePassThrough(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return pass_through_all_reduce(g, ctx.group), None


class _AllReduceAllReduce(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return all_reduce_all_reduce(g, ctx.group), None


class _AllGatherSplit(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Any) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _gathered(x, dim, group)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return split_all_gather(g, ctx.dim, ctx.group), None, None


class _SplitAllGather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Any) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _own_part(x, dim, group).clone(memory_format=warptape.contiguous_format)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return all_gather_split(g, ctx.dim, ctx.group), None, None


class _AllGatherReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Any) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _gathered(x, dim, group)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return reduce_scatter_all_gather(g, ctx.dim, ctx.group), None, None


class _ReduceScatterAllGather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Any) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return _reduce_scattered(x, dim, group)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return all_gather_reduce_scatter(g, ctx.dim, ctx.group), None, None


class _AllToAll(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, to_sizes: Any, from_sizes: Any, group: Any) -> Tensor:
        ctx.to_sizes, ctx.from_sizes, ctx.group = to_sizes, from_sizes, group
        rows = x.shape[0] if from_sizes is None else sum(from_sizes)
        out = warptape.empty((rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
        collectives.all_to_all_single(out, x.detach().contiguous(), from_sizes, to_sizes, group)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return all_to_all(g, ctx.from_sizes, ctx.to_sizes, ctx.group), None, None, None


class _BroadcastReduce(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, src: int, group: Any) -> Tensor:
        ctx.src, ctx.group = src, group
        out = x.detach().clone(memory_format=warptape.contiguous_format)
        collectives.broadcast(out, group=group, group_src=src)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return reduce_broadcast(g, ctx.src, ctx.group), None, None


class _ReduceBroadcast(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dst: int, group: Any) -> Tensor:
        ctx.dst, ctx.group = dst, group
        out = x.detach().clone(memory_format=warptape.contiguous_format)
        collectives.reduce(out, group=group, group_dst=dst)
        return out if resolve(group).rank() == dst else warptape.zeros_like(out)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return broadcast_reduce(g, ctx.dst, ctx.group), None, None


class _SendRecv(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, peer: int, tag: int, group: Any) -> Tensor:
        ctx.peer, ctx.tag, ctx.group = peer, tag, group
        ctx.like = x.detach()
        collectives.send(x.detach(), group=group, tag=tag, group_dst=peer)
        return warptape.zeros((), dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        gradient = warptape.empty_like(ctx.like)
        collectives.recv(gradient, group=ctx.group, tag=ctx.tag, group_src=ctx.peer)
        return gradient, None, None, None


class _RecvSend(Function):
    @staticmethod
    def forward(ctx: Any, like: Tensor, peer: int, tag: int, group: Any) -> Tensor:
        ctx.peer, ctx.tag, ctx.group = peer, tag, group
        out = warptape.empty_like(like)
        collectives.recv(out, group=group, tag=tag, group_src=peer)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        collectives.send(g, group=ctx.group, tag=ctx.tag, group_dst=ctx.peer)
        return None, None, None, None


def pass_through_all_reduce(x: Tensor, group: Group = None) -> Tensor:
    """x itself; its gradient is summed over the ranks. Where a tensor that all ranks hold goes into work that
    is split between them."""
    return _PassThroughAllReduce.apply(x, group)


def all_reduce_pass_through(x: Tensor, group: Group = None) -> Tensor:
    """The sum over the ranks; the gradient passes through. Where what all ranks do next is the same."""
    return _AllReducePassThrough.apply(x, group)


def all_reduce_all_reduce(x: Tensor, group: Group = None) -> Tensor:
    """The sum over the ranks; so is the gradient. Where every rank has a loss of its own."""
    return _AllReduceAllReduce.apply(x, group)


def all_gather_split(x: Tensor, dim: int = -1, group: Group = None) -> Tensor:
    """The parts of all ranks along `dim`; of the gradient, this rank's part. Where all ranks then do the
    same work."""
    return _AllGatherSplit.apply(x, dim, group)


def split_all_gather(x: Tensor, dim: int = -1, group: Group = None) -> Tensor:
    """This rank's part along `dim`; the gradients of all parts are gathered."""
    return _SplitAllGather.apply(x, dim, group)


def all_gather_reduce_scatter(x: Tensor, dim: int = 0, group: Group = None) -> Tensor:
    """The parts of all ranks along `dim`; of the summed gradients each rank gets its part."""
    return _AllGatherReduceScatter.apply(x, dim, group)


def reduce_scatter_all_gather(x: Tensor, dim: int = 0, group: Group = None) -> Tensor:
    """The sum over the ranks, of which each keeps its part along `dim`; the gradients are gathered."""
    return _ReduceScatterAllGather.apply(x, dim, group)


def all_to_all(
    x: Tensor,
    to_sizes: Sequence[int] | None = None,
    from_sizes: Sequence[int] | None = None,
    group: Group = None,
) -> Tensor:
    """Rows of x go to the ranks (`to_sizes` of them each, evenly if None), rows come from them; the gradient
    takes the way back."""
    return _AllToAll.apply(x, to_sizes, from_sizes, group)


def broadcast_reduce(x: Tensor, src: int = 0, group: Group = None) -> Tensor:
    """Rank `src` of the group's x on every rank; the gradients are summed on `src`, the others get zeros."""
    return _BroadcastReduce.apply(x, src, group)


def reduce_broadcast(x: Tensor, dst: int = 0, group: Group = None) -> Tensor:
    """The sum over the ranks on rank `dst` of the group, zeros elsewhere; its gradient is broadcast."""
    return _ReduceBroadcast.apply(x, dst, group)


def send_recv(x: Tensor, dst: int, tag: int = 0, group: Group = None) -> Tensor:
    """Sends x to rank `dst` of the group; backward receives its gradient from there.

    Returns a zero of no dims that carries the history: call backward() on it when `dst` calls backward.
    """
    return _SendRecv.apply(x, dst, tag, group)


def recv_send(like: Tensor, src: int, tag: int = 0, group: Group = None) -> Tensor:
    """Receives from rank `src` of the group a tensor like `like` (which must require a gradient for the way
    back to be recorded); backward sends the gradient there."""
    return _RecvSend.apply(like, src, tag, group)


__all__ = [
    "all_gather_reduce_scatter",
    "all_gather_split",
    "all_reduce_all_reduce",
    "all_reduce_pass_through",
    "all_to_all",
    "broadcast_reduce",
    "pass_through_all_reduce",
    "recv_send",
    "reduce_broadcast",
    "reduce_scatter_all_gather",
    "send_recv",
    "split_all_gather",
]
