"""From one placement of an activation to another, by recorded collectives."""

from __future__ import annotations

from typing import Any

from ... import core as wt
from ...autograd import Function
from ...core import Tensor
from ...distributed import DeviceMesh
from ...distributed import functional as C
from ..dtensor.placement import Partial, Placement, Replicate, Shard

_ALL = Replicate()


class _GatheredAlso(Function):
    """What was gathered, again: for work that all ranks do alike, each takes its shard of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gathered: Tensor, dim: int, group: Any) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return gathered.view_as(gathered)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return C.split_all_gather(g, ctx.dim, ctx.group), None, None, None


def _gathered(x: Tensor, have: Shard, group: Any) -> Tensor:
    """All of x, for work that all ranks do alike."""
    ranks = group.size()
    lengths = [n // ranks for n in have.sizes(int(x.shape[have.dim]) * ranks)]
    shards = [C.all_gather_split(p, have.dim, group) for p in x.split(lengths, have.dim)]
    return wt.cat(shards, have.dim) if len(shards) > 1 else shards[0]


def _check(x: Tensor, want: Shard, group: Any) -> None:
    want.check(int(x.shape[want.dim]), group.size(), f"dim {want.dim} of an activation {list(x.shape)}")


def _shard(x: Tensor, want: Shard, group: Any) -> Tensor:
    """This rank's shard of x."""
    _check(x, want, group)
    sections = x.split(want.sizes(int(x.shape[want.dim])), want.dim)
    shards = [C.split_all_gather(p, want.dim, group) for p in sections]
    return wt.cat(shards, want.dim) if len(shards) > 1 else shards[0]


def redistribute(x: Tensor, have: Placement, want: Placement, mesh: DeviceMesh) -> Tensor:
    """x, which lies as `have` says, as `want` says.

    Gradients of replicated tensors are replicated, too. A tensor that is gathered carries its twin for split
    layers (see `for_split_work`). Raises ValueError for a size that does not divide.
    """
    group = mesh.get_group()
    if have == want:
        return x
    if isinstance(have, Partial):
        if isinstance(want, Replicate):
            return C.all_reduce_pass_through(x, group)
        if isinstance(want, Shard) and want.parts is None:
            _check(x, want, group)
            return C.reduce_scatter_all_gather(x, want.dim, group)
    elif isinstance(want, Shard):
        return _shard(_gathered(x, have, group) if isinstance(have, Shard) else x, want, group)
    elif isinstance(have, Shard) and isinstance(want, Replicate):
        if have.parts is not None:
            return _gathered(x, have, group)
        split = C.all_gather_reduce_scatter(x, have.dim, group)
        return hand_over(_GatheredAlso.apply(x, split.detach(), have.dim, group), split, mesh)
    raise ValueError(
        f"redistribute: cannot bring {have!r} to {want!r}; the last must be Replicate() or Shard(dim)"
    )


def hand_over(x: Tensor, split: Tensor, mesh: DeviceMesh, have: Placement = _ALL) -> Tensor:
    """Lets x stand for `split` where split layers take it, as long as it is not changed in place.

    Args:
        x: what the caller sees.
        split: what split layers take.
        mesh: of one axis.
        have: how `split` lies.
    """
    x._for_split_work = split, mesh, have, x._version  # type: ignore[attr-defined]
    return x


def for_split_work(x: Tensor, have: Placement, mesh: DeviceMesh) -> Tensor:
    """The whole of x for a layer of which each rank does a part: gradients are summed over the ranks, once
    for all layers that take x."""
    ready, of, lay, version = getattr(x, "_for_split_work", (None, None, None, 0))
    if ready is not None and of is mesh and lay == have and version == x._version:
        return ready
    if isinstance(have, Shard):
        split = C.all_gather_reduce_scatter(x, have.dim, mesh.get_group())
    else:
        split = C.pass_through_all_reduce(x, mesh.get_group())
    if x.grad_fn is not None and split.requires_grad:  # else x may outlive what was recorded
        hand_over(x, split, mesh, have)
    return split
