"""Parameters that several stages have, as tied embeddings: one value, one gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import core as wt
from ...core import Tensor
from ...core.placed import set_norm_stages
from ...distributed import irecv, isend
from ..dtensor.tensor import plain
from .stage import PipelineStage


class SharedParameters:
    """Keeps them equal over the ranks of a group, by messages between their owners alone.

    Args:
        owners: for each common name, the ranks of the group that have it, in order.
    """

    def __init__(self, stages: Sequence[PipelineStage], owners: dict[str, list[int]]) -> None:
        self.group, self.rank = stages[0].group, stages[0].group_rank
        self.owners = owners
        self.mine: dict[str, list[Any]] = {}
        for name in sorted(owners):
            parameters = {id(s.shared[name]): s.shared[name] for s in stages if name in s.shared}
            if parameters:
                self.mine[name] = list(parameters.values())
        self.before: dict[str, Tensor | None] = {}
        counted_elsewhere = {
            id(p) for name, own in self.mine.items() for p in own[self.rank == owners[name][0] :]
        }
        for stage in stages:
            for p in stage.submod.parameters():
                set_norm_stages(p, self.group, id(p) not in counted_elsewhere)

    def equalize(self) -> None:
        """All owners take the first one's value."""
        with wt.no_grad():
            for name, parameters in self.mine.items():
                first, *others = self.owners[name]
                value = plain(parameters[0]).detach().contiguous()
                if self.rank == first:
                    for work in [isend(value, group=self.group, group_dst=r) for r in others]:
                        work.wait()  # type: ignore[union-attr]
                else:
                    value = wt.empty_like(value)
                    irecv(value, group=self.group, group_src=first).wait()  # type: ignore[union-attr]
                for parameter in parameters:
                    plain(parameter).copy_(value)

    def begin(self) -> None:
        """Sets aside the gradients of earlier steps: they are summed already."""
        for name, parameters in self.mine.items():
            self.before[name] = parameters[0].grad
            for parameter in parameters:
                parameter.grad = None

    def finish(self) -> None:
        """Sums the gradients of this step over all owners, in the order of ranks, so to the same bits."""
        with wt.no_grad():
            for name, parameters in self.mine.items():
                if not parameters[0].requires_grad:
                    continue
                total = self._sum_over_owners(name, parameters)
                before = self.before.pop(name)
                for parameter in parameters:
                    parameter.grad = total.clone() if before is None else plain(before) + total

    def _sum_over_owners(self, name: str, parameters: list[Any]) -> Tensor:
        own = wt.zeros_like(plain(parameters[0]))
        for parameter in parameters:
            if parameter.grad is not None:
                own += plain(parameter.grad)
        parts = {r: own if r == self.rank else wt.empty_like(own) for r in self.owners[name]}
        others = [r for r in parts if r != self.rank]
        works = [isend(own, group=self.group, group_dst=r) for r in others]
        works += [irecv(parts[r], group=self.group, group_src=r) for r in others]
        for work in works:
            work.wait()  # type: ignore[union-attr]
        return sum(parts.values(), wt.zeros_like(own))
