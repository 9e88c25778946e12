"""Parameters that several stages have, as tied embeddings: one value, one gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import warptape

from ..._tensor import Tensor
from ...distributed import irecv, isend
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
                norm = ((self.group,), id(p) not in counted_elsewhere)
                p._norm_stages = norm  # type: ignore[attr-defined]  # for nn.utils.clip_grad_norm_

    def equalize(self) -> None:
        """All owners take the first one's value."""
        with warptape.no_grad():
            for name, parameters in self.mine.items():
                first, *others = self.owners[name]
                value = parameters[0].detach().contiguous()
                if self.rank == first:
                    for work in [isend(value, group=self.group, group_dst=r) for r in others]:
                        work.wait()  # type: ignore[union-attr]
                else:
                    value = warptape.empty_like(value)
                    irecv(value, group=self.group, group_src=first).wait()  # type: ignore[union-attr]
                for parameter in parameters:
                    parameter.copy_(value)

    def begin(self) -> None:
        """Sets aside the gradients of earlier steps: they are summed already."""
        for name, parameters in self.mine.items():
            self.before[name] = parameters[0].grad
            for parameter in parameters:
                parameter.grad = None

    def finish(self) -> None:
        """Sums the gradients of this step over all owners, in the order of ranks, so to the same bits."""
        with warptape.no_grad():
            for name, parameters in self.mine.items():
                if not parameters[0].requires_grad:
                    continue
                total = self._sum_over_owners(name, parameters)
                before = self.before.pop(name)
                for parameter in parameters:
                    parameter.grad = total.clone() if before is None else before + total

    def _sum_over_owners(self, name: str, parameters: list[Any]) -> Tensor:
        own = warptape.zeros_like(parameters[0])
        for parameter in parameters:
            if parameter.grad is not None:
                own += parameter.grad
        parts = {r: own if r == self.rank else warptape.empty_like(own) for r in self.owners[name]}
        others = [r for r in parts if r != self.rank]
        works = [isend(own, group=self.group, group_dst=r) for r in others]
        works += [irecv(parts[r], group=self.group, group_src=r) for r in others]
        for work in works:
            work.wait()  # type: ignore[union-attr]
        return sum(parts.values(), warptape.zeros_like(own))
