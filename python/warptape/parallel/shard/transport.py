"""All-gather and reduce-scatter of many parameters at once.

A large tensor travels by itself, from and into its own memory. Small ones of a dtype travel joined, for a
call costs more than their bytes.

Shapes: n ranks; a shard is [R, ...], a full tensor [n * R, ...]: padded, so that all shards are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ... import core as wt
from ... import distributed as dist
from ...core import Tensor

JOINED_BYTES = 1 << 16  # a part below this travels with others


def _bundles(shards: Sequence[tuple[Any, int]]) -> list[list[int]]:
    """Numbers of the tensors, given as (dtype, bytes of a part), that travel together."""
    alone: list[list[int]] = []
    joined: dict[Any, list[int]] = {}
    for i, (dtype, size) in enumerate(shards):
        if size < JOINED_BYTES:
            joined.setdefault(dtype, []).append(i)
        else:
            alone.append([i])
    return alone + list(joined.values())


def _made(comm: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Memory for what comes, that a custom `comm` may have of its own."""
    if comm is None:
        return wt.empty(shape, dtype=like.dtype, device=like.device)
    return comm.allocate((math.prod(shape),), dtype=like.dtype, device=like.device).view(shape)


class Gathering:
    """Full tensors of shards, on their way. `comm` replaces all_gather_into_tensor, if given."""

    def __init__(self, shards: Sequence[Tensor], group: Any, async_op: bool, comm: Any = None) -> None:
        n = group.size()
        self.full_tensors: list[Any] = [None] * len(shards)
        self.under_way = []
        if n == 1:
            self.full_tensors = [shard.contiguous() for shard in shards]
        for members in _bundles([(p.dtype, p.nbytes) for p in shards]) if n > 1 else ():
            first = shards[members[0]]
            if len(members) == 1:
                shard = first.contiguous()
                shape = (n * shard.shape[0], *shard.shape[1:])
            else:
                shard = wt.cat([shards[i].reshape(-1) for i in members])
                shape = (n, shard.numel())
            out = _made(comm, shape, shard)
            work = (comm or dist.all_gather_into_tensor)(out, shard, group, async_op)
            self.under_way.append((work, members, out))
        self.shapes = [(n * p.shape[0], *p.shape[1:]) for p in shards]
        self.lengths = [p.numel() for p in shards]

    def wait(self) -> list[Tensor]:
        """The full tensors, in the order of the shards."""
        for work, members, out in self.under_way:
            if work is not None:
                work.wait()
            each = out.split([self.lengths[i] for i in members], 1) if len(members) > 1 else [out]
            for i, full in zip(members, each, strict=True):
                self.full_tensors[i] = full.reshape(self.shapes[i])
        self.under_way.clear()
        return self.full_tensors


class Scattering:
    """The average of full tensors that differ between the ranks; each rank gets its shard. On their way.

    With `copies`, a group of ranks that have the same shard, it is the average over these, too. With
    `divisor` it is the sum, divided by it. `hook` is called with what was reduced, joined in one tensor or
    more; `comm` takes the place of reduce_scatter_tensor.
    """

    def __init__(
        self,
        full_tensors: Sequence[Tensor],
        group: Any,
        copies: Any,
        divisor: float | None,
        hook: Any = None,
        comm: Any = None,
    ) -> None:
        n = group.size()
        self.copies, self.divisor, self.hook = copies, divisor, hook
        self.op = dist.ReduceOp.AVG if divisor is None else dist.ReduceOp.SUM
        self.shards: list[Any] = [None] * len(full_tensors)
        self.under_way: list[tuple[Any, list[int], Tensor]] = []
        self.shapes = [(w.shape[0] // n, *w.shape[1:]) for w in full_tensors]
        self.lengths = [w.numel() // n for w in full_tensors]
        for members in _bundles([(w.dtype, w.nbytes // n) for w in full_tensors]):
            if len(members) == 1:
                full = full_tensors[members[0]].contiguous()
                shape = self.shapes[members[0]]
            else:
                full = wt.cat([full_tensors[i].reshape(n, self.lengths[i]) for i in members], 1)
                shape = (full.shape[1],)
            if n == 1:
                self.under_way.append((None, members, full.reshape(shape)))
                continue
            out = _made(comm, shape, full)
            work = (comm or dist.reduce_scatter_tensor)(out, full, group=group, op=self.op, async_op=True)
            self.under_way.append((work, members, out))

    def wait(self, held: Sequence[Tensor | None], last: bool = True) -> list[Tensor]:
        """This rank's shards, in the order of the full tensors, each with what `held` has of earlier passes.
        Unless `last`, they are summed over the ranks alone, to be held until a pass that is."""
        for work, members, out in self.under_way:
            if work is not None:
                work.wait()
            for i, shard in zip(
                members, out.reshape(-1).split([self.lengths[i] for i in members]), strict=True
            ):
                self.shards[i] = shard.reshape(self.shapes[i])
                before = held[i]
                if before is not None:
                    self.shards[i] += before
            if not last:
                continue
            if self.copies is not None:
                dist.all_reduce(out, self.op, self.copies)
            if self.divisor is not None:
                out.div_(self.divisor)
            if self.hook is not None:
                self.hook(out)
        self.under_way.clear()
        return self.shards
