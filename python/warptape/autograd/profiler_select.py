"""What of a recording is kept: activities of the types that were asked for, while they were switched on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .profiler_util import FunctionEvent

__all__ = ["HOST_CATEGORIES", "Selection", "keep_calls", "keep_host_events"]

# Of a trace, by PyTorch's names: tools that read its traces look for these.
HOST_CATEGORIES = {
    "op": "cpu_op",
    "backward": "cpu_op",
    "user": "user_annotation",
    "collective": "user_annotation",
    "region": "cpu_op",
    "kernel": "cpu_op",
    "memory": "cpu_instant_event",
}
# The categories that PyTorch's names of types stand for; what is not recorded here has none.
_TYPES = {
    "CPU": {
        "CPU_OP": "cpu_op",
        "USER_ANNOTATION": "user_annotation",
        "CPU_INSTANT_EVENT": "cpu_instant_event",
        "PYTHON_FUNCTION": "python_function",
        "EXTERNAL_CORRELATION": "",
        "CUDA_RUNTIME": "",
        "CUDA_DRIVER": "",
    },
    "CUDA": {
        "GPU_MEMCPY": "gpu_memcpy",
        "GPU_MEMSET": "gpu_memset",
        "CONCURRENT_KERNEL": "kernel",
        "GPU_USER_ANNOTATION": "",
        "EXTERNAL_CORRELATION": "",
        "CUDA_RUNTIME": "",
        "CUDA_DRIVER": "",
        "CUDA_SYNC": "",
        "CUDA_EVENT": "",
        "OVERHEAD": "",
    },
}


class Selection:
    """Types of activities, and the times at which each group of them ("CPU", "CUDA") was switched off.

    Args:
        types: by group, the names of PyTorch's types to keep; a group that is not there keeps all.

    Raises:
        ValueError: a name that is no type of its group.
    """

    def __init__(self, types: Mapping[str, Collection[str]]) -> None:
        self._kept: dict[str, set[str]] = {}
        for group, names in types.items():
            known = _TYPES.get(group, {})
            if wrong := [name for name in names if name not in known]:
                raise ValueError(
                    f"profile: {wrong[0]!r} is no type of activity of {group}; there are {', '.join(known)}"
                )
            self._kept[group] = {known[name] for name in names}
        self._off: dict[str, list[list[float]]] = {}

    def switch(self, group: str, on: bool, now: float) -> None:
        """From `now` on, in microseconds since the recording began.

        Args:
            group: as "CPU" or "CUDA".
            on: whether its events are kept.
            now: microseconds.
        """
        spans = self._off.setdefault(group, [])
        is_on = not spans or spans[-1][1] <= now
        if on and not is_on:
            spans[-1][1] = now
        elif not on and is_on:
            spans.append([now, float("inf")])

    def keeps_all(self, group: str) -> bool:
        """Whether nothing of the group is to be dropped.

        Args:
            group: as "CPU" or "CUDA".
        """
        return group not in self._kept and group not in self._off

    def keeps(self, group: str, category: str, at: float) -> bool:
        """Whether what began at `at` microseconds, of a category of the trace, is kept.

        Args:
            group: as "CPU" or "CUDA".
            category: of the trace.
            at: microseconds.
        """
        if group in self._kept and category not in self._kept[group]:
            return False
        return not any(start <= at < end for start, end in self._off.get(group, ()))


def keep_host_events(events: list[FunctionEvent], selection: Selection) -> list[FunctionEvent]:
    """The events that are kept. What lies in one that is not moves to the next one outside that is.

    Args:
        events: of the CPU.
        selection: what is kept.
    """
    if selection.keeps_all("CPU"):
        return events

    def kept(e: FunctionEvent) -> bool:
        return selection.keeps("CPU", HOST_CATEGORIES[e.kind], e.time_range.start)

    out = [e for e in events if kept(e)]
    there = set(out)
    for e in out:
        while e.cpu_parent is not None and e.cpu_parent not in there:
            e.cpu_parent = e.cpu_parent.cpu_parent
        e.forward = e.forward if e.forward in there else None
        e.cpu_children = []
    for e in out:
        if e.cpu_parent is not None:
            e.cpu_parent.cpu_children.append(e)
    return out


def keep_calls(calls: Iterable[Any], selection: Selection) -> list[Any]:
    """The same of calls of Python's functions.

    Args:
        calls: with a time_range.
        selection: what is kept.
    """
    if selection.keeps_all("CPU"):
        return list(calls)
    out = [c for c in calls if selection.keeps("CPU", "python_function", c.time_range.start)]
    there = set(out)
    for c in out:
        while c.parent is not None and c.parent not in there:
            c.parent = c.parent.parent
    return out
