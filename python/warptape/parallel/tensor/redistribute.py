"""From one placement of an activation to another, by recorded collectives."""

from __future__ import annotations

from typing import Any

import warptape

from ..._tensor import Tensor
from ...autograd import Function
from ...distributed import DeviceMesh
from ...distributed import functional as C
from .placement import Partial, Placement, Replicate, Shard


class _GatheredAlso(Function):
    """What was gathered, again: for work that all ranks do alike, so that of its gradient each takes its
    part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gathered: Tensor, dim: int, group: Any) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return gathered.view_as(gathered)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return C.split_all_gather(g, ctx.dim, ctx.group), None, None, None


def redistribute(x: Tensor, have: Placement, want: Placement, mesh: DeviceMesh) -> Tensor:
    """x, which lies as `have` says, as `want` says.

    Gradients of replicated tensors are replicated, too. A tensor that is gathered carries its twin for split
    layers (see `for_split_work`).
    """
    group = mesh.get_group()
    if have == want:
        return x
    if isinstance(want, Shard):
        if isinstance(have, Partial):
            return C.reduce_scatter_all_gather(x, want.dim, group)
        if isinstance(have, Shard):
            x = C.all_gather_split(x, have.dim, group)
        return C.split_all_gather(x, want.dim, group)
    if isinstance(want, Replicate) and isinstance(have, Partial):
        return C.all_reduce_pass_through(x, group)
    if isinstance(want, Replicate) and isinstance(have, Shard):
        if have.parts is not None:
            lengths = [n // mesh.size() for n in have.sizes(int(x.shape[have.dim]) * mesh.size())]
            parts = [C.all_gather_split(p, have.dim, group) for p in x.split(lengths, have.dim)]
            return warptape.cat(parts, have.dim)
        split = C.all_gather_reduce_scatter(x, have.dim, group)
        out = _GatheredAlso.apply(x, split.detach(), have.dim, group)
        return hand_over(out, split)
    raise ValueError(f"expected to bring {have} to Replicate or Shard, got {want}")


def hand_over(x: Tensor, split: Tensor) -> Tensor:
    """Lets x stand for `split` where a split layer takes it."""
    x._for_split_work = split  # type: ignore[attr-defined]
    return x


def for_split_work(x: Tensor, have: Placement, mesh: DeviceMesh) -> Tensor:
    """The whole of x for a layer of which each rank does a part: gradients are summed over the ranks.

    Where x came in through PrepareModuleInput or `divide`, that is done there, once for all layers that
    take x.
    """
    ready = getattr(x, "_for_split_work", None)
    if ready is not None:
        return ready
    if isinstance(have, Shard):
        return C.all_gather_reduce_scatter(x, have.dim, mesh.get_group())
    return C.pass_through_all_reduce(x, mesh.get_group())
