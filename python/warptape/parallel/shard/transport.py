"""All-gather and reduce-scatter of many parameters at once.

A large tensor travels by itself, from and into its own memory. Small ones of a dtype travel joined, for a
call costs more than their bytes.

Shapes: n ranks; a part is [R, ...], a whole [n * R, ...]: padded, so that all parts are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import warptape
from warptape import distributed as dist

from ..._tensor import Tensor

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


class Gathering:
    """Wholes of parts, on their way."""

    def __init__(self, parts: Sequence[Tensor], group: Any, async_op: bool) -> None:
        n = group.size()
        self.wholes: list[Any] = [None] * len(parts)
        self.under_way = []
        for members in _bundles([(p.dtype, p.nbytes) for p in parts]):
            first = parts[members[0]]
            if len(members) == 1:
                part = first.contiguous()
                out = warptape.empty(
                    (n * part.shape[0], *part.shape[1:]), dtype=part.dtype, device=part.device
                )
            else:
                part = warptape.cat([parts[i].reshape(-1) for i in members])
                out = warptape.empty((n, part.numel()), dtype=part.dtype, device=part.device)
            work = dist.all_gather_into_tensor(out, part, group, async_op)
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
    it is the sum, divided by it.
    """

    def __init__(self, wholes: Sequence[Tensor], group: Any, copies: Any, divisor: float | None) -> None:
        n = group.size()
        self.copies, self.divisor = copies, divisor
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
                whole = warptape.cat([wholes[i].reshape(n, self.lengths[i]) for i in members], 1)
                shape = (whole.shape[1],)
            out = warptape.empty(shape, dtype=whole.dtype, device=whole.device)
            work = dist.reduce_scatter_tensor(out, whole, self.op, group, async_op=True)
            self.under_way.append((work, members, out))

    def wait(self) -> list[Tensor]:
        """This rank's parts, in the order of the wholes."""
        for work, members, out in self.under_way:
            work.wait()
            if self.copies is not None:
                dist.all_reduce(out, self.op, self.copies)
            if self.divisor is not None:
                out.div_(self.divisor)
            for i, part in zip(
                members, out.reshape(-1).split([self.lengths[i] for i in members]), strict=True
            ):
                self.parts[i] = part.reshape(self.shapes[i])
        self.under_way.clear()
        return self.parts
