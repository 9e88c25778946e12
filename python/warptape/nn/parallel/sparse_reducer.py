"""Averages sparse gradients over the ranks of a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from warptape import core as wt
from warptape.core import Tensor, offered

from ... import _C
from ...distributed import all_gather, all_reduce

_DENSE = -1  # in the place of a number of rows


class SparseReducer:
    """The average of gradients of parameters [rows, dim] that embeddings with `sparse=True` look up.

    Ranks exchange the rows that they have: indices and values, filled up to the most that a rank has. Where
    some rank's gradient is dense, so is the average. A gradient that no rank has stays None.
    """

    def __init__(self, group: Any, parameters: Sequence[Any]) -> None:
        self.group, self.parameters = group, list(parameters)
        self._known = {id(p) for p in self.parameters}
        self._queued = False

    def __contains__(self, parameter: Tensor) -> bool:
        return id(parameter) in self._known

    def prepare(self, outputs: Iterable[Tensor]) -> None:
        """Has backward passes through `outputs` end with average(), whichever parameters they reach.

        Args:
            outputs: tensors that the loss is computed from.
        """
        self._queued = False
        if self.parameters and self.group.size() > 1:
            for output in outputs:
                if output.requires_grad:
                    output.register_hook(self._queue)

    def _queue(self, gradient: Tensor) -> None:
        if not self._queued:
            self._queued = True
            queue = _C._queue_callback
            queue(lambda: queue(self.average))  # behind the dense reducer's, whose collectives come first

    def average(self) -> None:
        """Averages what the parameters have; collective.

        Sparse gradients stay sparse where every rank has a sparse one; a dense one anywhere makes all dense.
        """
        self._queued = False
        with wt.no_grad():
            for p in self.parameters if self.group.size() > 1 else ():
                counts = self._counts(p)
                if _DENSE in counts:
                    dense = p.grad if p.grad is not None else wt.zeros_like(p)
                    p.grad = dense.to_dense() if dense.is_sparse else dense
                    all_reduce(p.grad, group=self.group)
                    p.grad /= self.group.size()
                elif any(counts):
                    p.grad = self._average_of_rows(p, counts)

    def _counts(self, p: Any) -> list[int]:
        """How many rows each rank's gradient has."""
        if p.grad is not None and p.grad.is_sparse:
            p.grad = p.grad.coalesce()
        mine = 0 if p.grad is None else p.grad.values().size(0) if p.grad.is_sparse else _DENSE
        every = [wt.zeros(1, dtype=wt.int64, device=p.device) for _ in range(self.group.size())]
        all_gather(every, wt.full((1,), mine, dtype=wt.int64, device=p.device), group=self.group)
        return [int(count) for count in every]

    def _average_of_rows(self, p: Any, counts: list[int]) -> Any:
        most = max(counts)
        index = wt.zeros(most, dtype=wt.int64, device=p.device)
        value = p.new_zeros(most, *p.shape[1:])
        if p.grad is not None:
            given = p.grad.values()
            index[: len(given)], value[: len(given)] = p.grad.indices()[0], given
        indices = [wt.empty_like(index) for _ in counts]
        values = [wt.empty_like(value) for _ in counts]
        all_gather(indices, index, group=self.group)
        all_gather(values, value, group=self.group)
        at = wt.cat([i[:n] for i, n in zip(indices, counts, strict=True)])
        of = wt.cat([v[:n] for v, n in zip(values, counts, strict=True)]) / self.group.size()
        return offered("sparse").sparse_coo_tensor(at[None], of, p.shape)
