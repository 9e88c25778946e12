"""What a profile records for `export_memory_timeline`: which memory is of parameters, gradients or states.

Memory events tell addresses and bytes only. Which tensor lies at an address is seen where that costs the
program nothing per op: before and after each step of an optimizer, at the end in the modules that were
called, and in nodes of the tape that accumulate gradients.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import _C
from ...autograd.profiler_util import FunctionEvent
from ...core import Tensor
from ...optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

if TYPE_CHECKING:
    from warptape.optim import Optimizer

__all__ = ["MemoryChange", "MemoryNote", "MemoryNotes"]


class MemoryNote(NamedTuple):
    """At `time` (nanoseconds of the clock) memory at `address` was of this category, if one is given."""

    time: int
    address: int
    bytes: int
    category: str | None
    device: str


class MemoryChange(NamedTuple):
    """Memory that was taken (bytes > 0) or given back; `event` is the innermost one that it happened in."""

    time: int
    address: int
    bytes: int
    device: str
    event: FunctionEvent | None


class MemoryNotes:
    """Records, from now to `stop`, changes of memory, and ops that recorded a node of the tape.

    Attributes:
        notes: in the order of time.
        changes: likewise, of all threads.
        recorded: the ops, outermost ones.
    """

    def __init__(self) -> None:
        self.notes: list[MemoryNote] = []
        self.changes: list[MemoryChange] = []
        self.recorded: set[FunctionEvent] = set()
        self._raw: list[tuple[int, int, int, str | None, str]] = []
        self._params: dict[int, Any] = {}  # of optimizers, by id()
        self._handles = [
            register_optimizer_step_pre_hook(self._at_step),
            register_optimizer_step_post_hook(self._at_step),
        ]

    def _note(self, t: Tensor, category: str | None) -> None:
        try:
            held = _C._storage_bytes(t)
            address = held.data_ptr()
        except (NotImplementedError, RuntimeError, ValueError):  # sparse, or a lazy module's parameter
            return
        if address:
            # A plain tuple, for to make a MemoryNote is a call of Python's, which the profile would record.
            self._raw.append((time.perf_counter_ns(), address, held.numel(), category, str(t.device)))

    def _at_step(self, optimizer: Optimizer, *_: Any) -> None:
        with _C.DisableTorchFunction():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    self._params[id(p)] = p
                    self._leaf(p)
            for state in optimizer.state.values():
                for t in state.values() if isinstance(state, dict) else ():
                    if isinstance(t, Tensor):
                        self._note(t, "optimizer state")

    def _leaf(self, p: Tensor) -> None:
        self._note(p, "parameters")
        if p.grad is not None:
            self._note(p.grad, "gradients")

    def stop(self) -> None:
        """Watches no optimizer any more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def add(self, memory: list[Any], events: list[FunctionEvent]) -> None:
        """What a thread recorded."""
        for at, size, address, device, event in memory:
            inside = events[event] if event >= 0 else None
            self.changes.append(MemoryChange(at, address, size, str(device), inside))

    def finish(self, events: list[FunctionEvent], modules: Iterable[Any]) -> None:
        """Once all threads were added, with the modules that were called."""
        params = self._params
        self._params = {}
        for module in modules:
            for b in module.buffers():
                self._note(b, None)
            params |= {id(p): p for p in module.parameters()}
        for p in params.values():
            self._leaf(p)
        self.notes = [MemoryNote(*raw) for raw in self._raw]
        self.changes.sort(key=lambda c: c.time)
        for c in self.changes:
            if c.bytes > 0 and c.event is not None and "AccumulateGrad" in c.event.name:
                self.notes.append(MemoryNote(c.time, c.address, c.bytes, "gradients", c.device))
        self.notes.sort(key=lambda n: n.time)
        self._find_recorded(events)

    def _find_recorded(self, events: list[FunctionEvent]) -> None:
        """An op sees the number of the next node: it recorded one if the op after it sees a greater one.

        Of the last op of a thread this is known only if its node runs, too.
        """
        previous: FunctionEvent | None = None
        for e in events:
            if e.kind == "backward" and e.forward is not None:
                self.recorded.add(outermost_op(e.forward))
            if e.kind != "op" or outermost_op(e) is not e:
                continue
            if previous is not None and previous.thread == e.thread and previous.sequence_nr < e.sequence_nr:
                self.recorded.add(previous)
            previous = e


def outermost_op(event: FunctionEvent) -> FunctionEvent:
    """The outermost op that the event lies in; the node of the tape where it lies in one; else itself."""
    op, at = event, event.cpu_parent
    while at is not None:
        if at.kind == "backward":
            return at
        if at.kind == "op":
            op = at
        at = at.cpu_parent
    return op


def index_after(changes: list[MemoryChange], at: float) -> int:
    """How many changes there were up to a time."""
    return bisect_right(changes, at, key=lambda c: c.time)
