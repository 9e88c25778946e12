"""torch.profiler's names over wall-clock ranges: those that `record_function` marks, and steps.

Single ops are not recorded. `key_averages().table()` sums the ranges up, `export_chrome_trace` writes them
for chrome://tracing and Perfetto.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ._missing import install_getattr as _install_getattr
from ._missing import say_once, unusable

__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "record_function",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]


class ProfilerActivity(Enum):
    """What may be recorded; here ranges of the host, whichever is asked for."""

    CPU = 0
    XPU = 1
    MTIA = 2
    CUDA = 3
    HPU = 4
    PrivateUse1 = 5


class ProfilerAction(Enum):
    """What happens in one step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def supported_activities() -> set[ProfilerActivity]:
    """What this runtime records."""
    return {ProfilerActivity.CPU}


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Callable[[int], ProfilerAction]:
    """What to do in each step: after `skip_first` steps, cycles of `wait`, `warmup` and `active` steps.

    `repeat` cycles, endlessly for 0; the last active step of each hands the trace over. With
    `skip_first_wait` the first cycle does not wait.

    Raises:
        ValueError: a negative number, or no active step.
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        raise ValueError(
            "schedule: expected wait, warmup, repeat and skip_first of at least 0 and active of at least 1, "
            f"got wait={wait}, warmup={warmup}, active={active}, repeat={repeat}, skip_first={skip_first}"
        )

    def action(step: int) -> ProfilerAction:
        step -= skip_first
        if step < 0:
            return ProfilerAction.NONE
        step += wait if skip_first_wait else 0
        cycle, place = divmod(step, wait + warmup + active)
        if (repeat and cycle >= repeat) or place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        last = place == wait + warmup + active - 1
        return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD

    return action


@dataclass
class Range:
    """One range: nanoseconds of its start, of its length, and of the ranges within it."""

    name: str
    thread: int
    start: int
    length: int = 0
    inner: int = 0


@dataclass
class Average:
    """All ranges of one name. Times are microseconds."""

    key: str
    count: int = 0
    cpu_time_total: float = 0.0
    self_cpu_time_total: float = 0.0

    @property
    def cpu_time(self) -> float:
        """The mean length."""
        return self.cpu_time_total / self.count


class EventList(list):
    """What key_averages() returns: Averages, and a table of them."""

    def table(
        self, sort_by: str | None = None, row_limit: int = 100, max_name_column_width: int = 55, **_: Any
    ) -> str:
        """The ranges by name, longest first unless `sort_by` names another column."""
        key = sort_by if sort_by in ("count", "cpu_time", "self_cpu_time_total") else "cpu_time_total"
        rows = sorted(self, key=lambda row: -getattr(row, key))[: row_limit if row_limit > 0 else None]
        width = min(max([4, *(len(row.key) for row in rows)]), max_name_column_width)
        lines = [f"{'Name':{width}}  {'Calls':>7}  {'Total us':>12}  {'Self us':>12}  {'Mean us':>12}"]
        for row in rows:
            times = (row.cpu_time_total, row.self_cpu_time_total, row.cpu_time)
            lines.append(
                f"{row.key[:width]:{width}}  {row.count:7}" + "".join(f"  {value:12.1f}" for value in times)
            )
        return "\n".join(lines)


_open: profile | None = None
_stacks = threading.local()


class record_function(contextlib.ContextDecorator):
    """A range by name, as a context or as a decorator; it costs next to nothing while nobody records."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args
        self._range: Range | None = None

    def _recreate_cm(self) -> record_function:
        return record_function(self.name, self.args)

    def __enter__(self) -> record_function:
        if _open is not None and _open.recording:
            self._range = Range(self.name, threading.get_native_id(), time.perf_counter_ns())
            vars(_stacks).setdefault("ranges", []).append(self._range)
        return self

    def __exit__(self, *error: object) -> None:
        found, self._range = self._range, None
        if found is None:
            return
        found.length = time.perf_counter_ns() - found.start
        stack = _stacks.ranges
        stack.remove(found)
        if stack:
            stack[-1].inner += found.length
        if _open is not None:
            _open.ranges.append(found)


class profile:
    """Records ranges from `start` to `stop`, or within a `with`; with a `schedule`, by `step`.

    Args:
        activities: accepted; ranges of the host are recorded.
        schedule: what to do in step n; without it, everything is recorded.
        on_trace_ready: called with this object when a cycle of the schedule, or all, was recorded.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        **options: Any,
    ) -> None:
        self.schedule = schedule or (lambda step: ProfilerAction.RECORD)
        self.on_trace_ready, self.step_num, self.ranges = on_trace_ready, 0, list[Range]()
        self._action, self._step = ProfilerAction.NONE, record_function("")
        self._metadata: dict[str, str] = {}

    @property
    def recording(self) -> bool:
        """Whether ranges are kept now."""
        return self._action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)

    def start(self) -> None:
        """Begin. RuntimeError while another profile runs."""
        global _open
        if _open is not None:
            raise RuntimeError("profile: another profile is running; stop it first")
        say_once("torch.profiler: records steps and record_function ranges, no single ops")
        _open = self
        self._begin_step()

    def _begin_step(self) -> None:
        before, self._action = self._action, self.schedule(self.step_num)
        if self.recording and before is not ProfilerAction.RECORD:  # a new cycle
            self.ranges = []
        self._step = record_function(f"ProfilerStep#{self.step_num}").__enter__()

    def _end_step(self) -> None:
        self._step.__exit__()

    def step(self) -> None:
        """A step of the schedule ends here."""
        self._end_step()
        if self._action is ProfilerAction.RECORD_AND_SAVE and self.on_trace_ready:
            self.on_trace_ready(self)
        self.step_num += 1
        self._begin_step()

    def stop(self) -> None:
        """End, and hand over what was recorded."""
        global _open
        self._end_step()
        if self.recording and self.on_trace_ready:
            self.on_trace_ready(self)
        self._action, _open = ProfilerAction.NONE, None

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def events(self) -> list[Range]:
        """The ranges of the last cycle, in the order in which they ended."""
        return self.ranges

    def key_averages(self, *args: Any, **kwargs: Any) -> EventList:
        """The ranges of the last cycle, summed up by name."""
        found: dict[str, Average] = {}
        for r in self.ranges:
            row = found.setdefault(r.name, Average(r.name))
            row.count += 1
            row.cpu_time_total += r.length / 1e3
            row.self_cpu_time_total += (r.length - r.inner) / 1e3
        return EventList(found.values())

    def add_metadata(self, key: str, value: str) -> None:
        """Text that goes into the trace."""
        self._metadata[key] = value

    def export_chrome_trace(self, path: str) -> None:
        """Write the ranges of the last cycle as JSON for chrome://tracing."""
        pid = os.getpid()
        events = [
            {"ph": "X", "cat": "user_annotation", "name": r.name, "pid": pid, "tid": r.thread}
            | {"ts": r.start / 1e3, "dur": r.length / 1e3}
            for r in self.ranges
        ]
        with open(path, "w") as file:
            json.dump({"schemaVersion": 1, "traceEvents": events, **self._metadata}, file)


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """An `on_trace_ready` that writes each trace into a folder, under a name that TensorBoard finds.

    Raises:
        NotImplementedError: `use_gzip`.
    """
    if use_gzip:
        raise NotImplementedError("tensorboard_trace_handler: expected use_gzip=False, got True")

    def write(p: profile) -> None:
        os.makedirs(dir_name, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        p.export_chrome_trace(os.path.join(dir_name, f"{worker}.{time.time_ns()}.pt.trace.json"))

    return write


def kineto_available() -> bool:
    """Whether `profile` is there, which in PyTorch depends on the build: it is."""
    return True


emit_nvtx = unusable("torch.autograd.profiler.emit_nvtx", "ranges for NVIDIA's tools are not emitted")
_install_getattr(__name__)
