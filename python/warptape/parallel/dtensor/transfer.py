"""From one layout to another, by collectives, and the same for gradients.

Note [gradients]: a gradient lies as its tensor does: parts of it where the tensor is split, all of it
on every rank where the tensor is replicated. Where the tensor is a sum that is still to be taken (Partial),
every rank has the full gradient of the sum, which is that of its summand; for an average it is divided by
the number of ranks. So a replicated tensor that goes into work that is split has its gradient summed at once,
where PyTorch leaves a Partial one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import core as wt
from ... import distributed as dist
from ...autograd import Function
from ...core import Tensor
from .layout import Layout, split_order
from .placement import Partial, Placement, Replicate, Shard

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}


def of_gradient(placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Where the gradient of a tensor lies: Note [gradients].

    Args:
        placements: of the tensor.
    """
    return tuple(Replicate() if isinstance(p, Partial) else p for p in placements)


def _padded(x: Tensor, dim: int, length: int) -> Tensor:
    if x.shape[dim] == length:
        return x.contiguous()
    shape = list(x.shape)
    shape[dim] = length
    out = wt.zeros(shape, dtype=x.dtype, device=x.device)
    out.narrow(dim, 0, x.shape[dim]).copy_(x)
    return out


def _gather(x: Tensor, where: Shard, size: int, group: Any) -> Tensor:
    """The full tensor, of that size along the dim, of the shards that the ranks hold."""
    x = where.padded(x, size, group.size())
    held = wt.empty((group.size(), *x.shape), dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(held, x, group)
    return where.join(list(held.unbind(0)), size)


def _scatter_sum(x: Tensor, dim: int, op: str, group: Any) -> Tensor:
    """What all ranks' x come to, of which each keeps its shard along `dim`."""
    n, size = group.size(), int(x.shape[dim])
    most = -(-size // n)
    chunks = _padded(x, dim, n * most).unflatten(dim, (n, most)).movedim(dim, 0).contiguous()
    out = wt.empty(chunks.shape[1:], dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(out, chunks.flatten(0, 1), _OPS[op], group)
    return out.narrow(dim, 0, Shard(0).ranges(size, group.rank(), n)[0][1])


def _exchange(x: Tensor, have: int, size: int, want: int, group: Any) -> Tensor:
    """Split along dim `have`, where the full tensor is `size`, to split along `want`, by one all-to-all."""
    n, across = group.size(), int(x.shape[want])
    most, wide = -(-size // n), -(-across // n)
    x = _padded(_padded(x, have, most), want, n * wide)
    to = x.unflatten(want, (n, wide)).movedim(want, 0).contiguous()
    came = wt.empty_like(to)
    dist.all_to_all_single(came, to, group=group)
    joined = wt.cat(list(came.unbind(0)), have).narrow(have, 0, size)
    return joined.narrow(want, 0, Shard(0).ranges(across, group.rank(), n)[0][1])


def _splits_before(axis: int, placements: Sequence[Placement]) -> list[tuple[int, Placement]]:
    """What splits the dim that an axis splits before that does."""
    order, dim = split_order(placements), placements[axis].dim  # type: ignore[attr-defined]
    return [(i, placements[i]) for i in order[: order.index(axis)] if placements[i].is_shard(dim)]


def _can_stay(axis: int, have: Sequence[Placement], want: Sequence[Placement]) -> bool:
    """Whether an axis leaves a tensor as it is: those before it split the dim in the same way, too."""
    if have[axis] != want[axis]:
        return False
    return not have[axis].is_shard() or _splits_before(axis, have) == _splits_before(axis, want)


def _undone(x: Tensor, axis: int, lies: Layout, want: Sequence[Placement]) -> tuple[Tensor, Placement]:
    """x with one axis's split taken back, or put straight along another dim; and where it lies then."""
    where, group = lies.placements[axis], lies.mesh.get_group(axis)
    assert isinstance(where, Shard)
    size, to = lies.size_before(axis), want[axis]
    others = [p for i, p in enumerate((*lies.placements, *want)) if i % lies.mesh.ndim != axis]
    if (
        isinstance(to, Shard)
        and to.dim != where.dim
        and to.parts is where.parts is None
        and not any(p.is_shard(to.dim) or p.is_shard(where.dim) for p in others)
    ):
        return _exchange(x, where.dim, size, to.dim, group), to
    return _gather(x, where, size, group), Replicate()


def _done(x: Tensor, axis: int, lies: Layout, to: Placement) -> Tensor:
    """x, replicated or still to be reduced along an axis, as wanted there."""
    have, group = lies.placements[axis], lies.mesh.get_group(axis)
    n, rank = group.size(), group.rank()
    if isinstance(have, Partial) and isinstance(to, Shard) and to.parts is None:
        return _scatter_sum(x, to.dim, have.reduce_op, group)
    if isinstance(have, Partial):
        x = x.clone(memory_format=wt.contiguous_format)
        dist.all_reduce(x, _OPS[have.reduce_op], group)
    if isinstance(to, Shard):
        return to.take(x, rank, n)
    if isinstance(to, Partial) and to.reduce_op in ("sum", "product") and rank:
        return wt.zeros_like(x) if to.reduce_op == "sum" else wt.ones_like(x)
    return x  # of an average, a largest or a smallest every rank may have the same


def move(x: Tensor, have: Layout, want: Sequence[Placement]) -> Tensor:
    """What this rank holds, once the tensor lies as `want` says; without a gradient. Collective.

    Args:
        x: what this rank holds.
        have: how the tensor lies.
        want: placements.
    """
    group_of, now = have.mesh, list(have.placements)
    if group_of.get_coordinate() is None:
        return x
    for axis in reversed(have.order):  # the last split is taken back first
        if isinstance(now[axis], Shard) and not _can_stay(axis, now, want):
            x, now[axis] = _undone(x, axis, have.with_placements(now), want)
    for axis in split_order(want):
        if now[axis] != want[axis]:
            x = _done(x, axis, have.with_placements(now), want[axis])
            now[axis] = want[axis]
    return x


def _averages(placements: Sequence[Placement], mesh: Any) -> int:
    out = 1
    for axis, where in enumerate(placements):
        out *= mesh.size(axis) if where == Partial("avg") else 1
    return out


class _Move(Function):
    """`move`, whose gradient moves back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, have: Layout, want: tuple[Placement, ...]) -> Tensor:
        ctx.have, ctx.want = have, want
        out = move(x.detach(), have, want)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        have, want = ctx.have, ctx.want
        for a, b in zip(have.placements, want, strict=True):
            if a != b and any(isinstance(p, Partial) and p.reduce_op not in ("sum", "avg") for p in (a, b)):
                raise RuntimeError(f"redistribute: from {a} to {b} there is no gradient")
        g = _Move.apply(g, have.with_placements(of_gradient(want)), of_gradient(have.placements))
        before, after = _averages(have.placements, have.mesh), _averages(want, have.mesh)
        return (g if before == after else g * (after / before)), None, None


def moved(x: Tensor, have: Layout, want: Sequence[Placement]) -> Tensor:
    """`move` as a recorded op; x itself where nothing is to be done.

    Args:
        x: what this rank holds.
        have: how the tensor lies.
        want: placements.
    """
    return x if have.placements == tuple(want) else _Move.apply(x, have, tuple(want))


class _Gradient(Function):
    """x, whose gradient goes from one layout to another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, have: Layout, want: tuple[Placement, ...]) -> Tensor:
        ctx.have, ctx.want = have, want
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return moved(g, ctx.have, ctx.want), None, None


def gradient_from(x: Tensor, lies: Layout, placements: Sequence[Placement]) -> Tensor:
    """x, whose gradient comes with these placements instead of those of Note [gradients].

    Args:
        x: what this rank holds.
        lies: how the tensor lies.
        placements: of the gradient that comes.
    """
    return _Gradient.apply(x, lies.with_placements(placements), of_gradient(lies.placements))


def gradient_to(x: Tensor, lies: Layout, placements: Sequence[Placement]) -> Tensor:
    """x, whose gradient is handed on with these placements.

    Args:
        x: what this rank holds.
        lies: how the tensor lies.
        placements: of the gradient that is handed on.
    """
    return _Gradient.apply(x, lies.with_placements(of_gradient(lies.placements)), tuple(placements))
