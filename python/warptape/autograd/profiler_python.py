"""What a profile records of Python: calls of functions and modules, and the modules that an op lies in."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from .profiler_util import FunctionEvent, Interval

__all__ = ["PythonEvent", "PythonRecord"]


@dataclass(eq=False)
class PythonEvent:
    """A call of a function of Python, "train.py(12): step", or of a module, "nn.Module: Linear_0".

    Attributes:
        id: unique in the profile, from 0.
        name: file, line at which the function begins and its name, or the class and number of the module.
        thread: the kernel's number, as of a FunctionEvent.
        time_range: microseconds since the profile began.
        parent: the call that it lies in.
        code: of the function; Module.__call__'s for a module.
        module_id: the number of the module in the order of first calls, -1 for a function.
    """

    id: int
    name: str
    thread: int
    time_range: Interval
    parent: PythonEvent | None
    code: CodeType
    module_id: int = -1

    def __repr__(self) -> str:
        length = self.time_range.elapsed_us()
        return f"<PythonEvent id={self.id} name={self.name} thread={self.thread} time={length:.3f}us>"


def _short(file: str) -> str:
    """Without the folder of sys.path that it lies in, as PyTorch's traces have it."""
    folders = (os.path.join(os.path.abspath(folder), "") for folder in sys.path if isinstance(folder, str))
    inside = max((folder for folder in folders if file.startswith(folder)), key=len, default="")
    return file[len(inside) :]


class PythonRecord:
    """The calls of all threads.

    Attributes:
        events: thread by thread, in the order in which they began.
        dropped: calls that were not kept, because a thread keeps 1,048,576.
        modules: that were called, in the order of their numbers.
    """

    def __init__(self, origin: int) -> None:
        self.events: list[PythonEvent] = []
        self.dropped = 0
        self._origin = origin
        self._numbers: dict[int, int] = {}  # of modules, by their id()
        self._names: list[str] = []
        self._of_class: Counter[str] = Counter()
        self._inside: dict[int, dict[int, str]] = {}  # by number: names in it of modules by id()
        self.modules: list[Any] = []

    def add(self, thread: int, found: tuple[list[CodeType], list[Any], int, list[Any]]) -> list[PythonEvent]:
        """The calls of one thread.

        Args:
            thread: its number.
            found: codes, modules, number of dropped calls, and calls.
        """
        codes, modules, dropped, calls = found
        self.dropped += dropped
        names = [f"{_short(c.co_filename)}({c.co_firstlineno}): {c.co_name}" for c in codes]
        numbers = [self._number(m) for m in modules]
        events: list[PythonEvent] = []
        for code, parent, module, start, end in calls:
            span = Interval((start - self._origin) / 1e3, (end - self._origin) / 1e3)
            number = numbers[module] if module >= 0 else -1
            name = self._names[number] if module >= 0 else names[code]
            outer = events[parent] if parent >= 0 else None
            place = len(self.events) + len(events)
            events.append(PythonEvent(place, name, thread, span, outer, codes[code], number))
        self.events += events
        return events

    def _number(self, module: Any) -> int:
        number = self._numbers.get(id(module))
        if number is None:
            kind = type(module).__name__
            number = self._numbers[id(module)] = len(self._names)
            self._names.append(f"nn.Module: {kind}_{self._of_class[kind]}")
            self._of_class[kind] += 1
            self.modules.append(module)
        return number

    def _step(self, outer: int, inner: int) -> str:
        module, kind = self.modules[inner], type(self.modules[inner]).__name__
        if outer < 0:
            return f"TOP({kind})::forward"
        parent = self.modules[outer]
        known = self._inside.get(outer)
        if known is None:
            known = self._inside[outer] = {}
            for name, m in parent.named_modules():
                known.setdefault(id(m), name or "SELF")
        return f"{known.get(id(module), 'UNKNOWN_INSTANCE')}({kind})::forward"

    def name_modules(self, events: Iterable[FunctionEvent], calls: list[PythonEvent]) -> None:
        """Sets `module_hierarchy` of the events of a thread, both in the order in which they began.

        Args:
            events, calls: of one thread.
        """
        following = iter([c for c in calls if c.module_id >= 0])
        call = next(following, None)
        running: list[tuple[float, int, str]] = []  # end, module and path of those that an event lies in
        for e in events:
            at = e.time_range.start
            while call is not None and call.time_range.start <= at:
                while running and running[-1][0] <= call.time_range.start:
                    running.pop()
                outer, path = (running[-1][1], f"{running[-1][2]}.") if running else (-1, "")
                step = self._step(outer, call.module_id)
                running.append((call.time_range.end, call.module_id, path + step))
                call = next(following, None)
            while running and running[-1][0] <= at:
                running.pop()
            e.module_hierarchy = running[-1][2] if running else ""
