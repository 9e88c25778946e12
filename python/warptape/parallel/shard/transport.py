"""All-gather and reduce-scatter of many parameters at once.

A large tensor travels by itself, from and into its own memory. Small ones of a dtype travel joined, for a
call costs more than their bytes.

Shapes: n ranks; a part is [R, ...], a whole [n * R, ...]: padded, so that all parts are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ... import core as wt
from ... import distributed as dist
from ...core import Tensor

JOINED_BYTES = 1 << 16  # a part below this travels with others


def _bundles(parts: Sequence[tuple[Any, int]]) -> list[list[int]]:
    """Numbers of the tensors, given as (dtype, bytes of a part), that travel together."""
    alone: list[list[int]] = []
    joined: dict[Any, list[int]] = {}
    for i, (dtype, size) in enumerate(parts):
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
    """Wholes of parts, on their way. `comm` takes the place of all_gather_into_tensor, if it is given."""

    def __init__(self, parts: Sequence[Tensor], group: Any, async_op: bool, comm: Any = None) -> None:
        n = group.size()
        self.wholes: list[Any] = [None] * len(parts)
        self.under_way = []
        if n == 1:
            self.wholes = [part.contiguous() for part in parts]
        for members in _bundles([(p.dtype, p.nbytes) for p in parts]) if n > 1 else ():
            first = parts[members[0]]
            if len(members) == 1:
                part = first.contiguous()
                shape = (n * part.shape[0], *part.shape[1:])
            else:
                part = wt.cat([parts[i].reshape(-1) for i in members])
                shape = (n, part.numel())
            out = _made(comm, shape, part)
            work = (comm or dist.all_gather_into_tensor)(out, part, group, async_op)
            self.under_way.append((work, members, out))
        self.shapes = [(n * p.shape[0], *p.shape[1:]) for p in parts]
        self.lengths = [p.numel() for p in parts]

    def wait(self) -> list[Tensor]:
        """The wholes, in the order of the parts."""
        for work, members, out in self.under_way:
            if work is not None:
                work.wait()
            each = out.split([self.lengths[i] for i in members], 1) if len(members) > 1 else [out]
            for i, whole in zip(members, each, strict=True):
                self.wholes[i] = whole.reshape(self.shapes[i])
        self.under_way.clear()
        return self.wholes


class Scattering:
    """Of wholes that differ between the ranks the average, of which each rank gets its part; on their way.

    With `copies`, a group of ranks that have the same part, it is the average over these, too. With `divisor`
    it is the sum, divided by it. `hook` is called with what was reduced, joined in one tensor or more; `comm`
    takes the place of reduce_scatter_tensor.
    """

    def __init__(
        self,
        wholes: Sequence[Tensor],
        group: Any,
        copies: Any,
        divisor: float | None,
        hook: Any = None,
        comm: Any = None,
    ) -> None:
        n = group.size()
        self.copies, self.divisor, self.hook = copies, divisor, hook
        self.op = dist.ReduceOp.AVG if divisor is None else dist.ReduceOp.SUM
        self.parts: list[Any] = [None] * len(wholes)
        self.under_way: list[tuple[Any, list[int], Tensor]] = []
        self.shapes = [(w.shape[0] // n, *w.shape[1:]) for w in wholes]
        self.lengths = [w.numel() // n for w in wholes]
        for members in _bundles([(w.dtype, w.nbytes // n) for w in wholes]):
            if len(members) == 1:
                whole = wholes[members[0]].contiguous()
                shape = self.shapes[members[0]]
            else:
                whole = wt.cat([wholes[i].reshape(n, self.lengths[i]) for i in members], 1)
                shape = (whole.shape[1],)
            if n == 1:
                self.under_way.append((None, members, whole.reshape(shape)))
                continue
            out = _made(comm, shape, whole)
            work = (comm or dist.reduce_scatter_tensor)(out, whole, group=group, op=self.op, async_op=True)
            self.under_way.append((work, members, out))

    def wait(self, held: Sequence[Tensor | None], last: bool = True) -> list[Tensor]:
        """This rank's parts, in the order of the wholes, each with what `held` has of earlier passes. Unless
        `last`, they are summed over the ranks alone, to be held until a pass that is."""
        for work, members, out in self.under_way:
            if work is not None:
                work.wait()
            for i, part in zip(
                members, out.reshape(-1).split([self.lengths[i] for i in members]), strict=True
            ):
                self.parts[i] = part.reshape(self.shapes[i])
                before = held[i]
                if before is not None:
                    self.parts[i] += before
            if not last:
                continue
            if self.copies is not None:
                dist.all_reduce(out, self.op, self.copies)
            if self.divisor is not None:
                out.div_(self.divisor)
            if self.hook is not None:
                self.hook(out)
        self.under_way.clear()
        return self.parts
