"""One recording of events, from start to stop; `warptape.profiler` takes these by a schedule.

Recorded are the calls of ops, also those that an op makes, nodes of the tape, collectives, compiled regions
and their steps, loading of data, steps of optimizers, and ranges that `record_function` marks: of the thread
that starts, and of threads that enter such a range. Without a recording an op pays nothing for it.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
import warnings
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from .. import _C
from .._missing import unusable
from ..core import offered
from . import profiler_python, profiler_trace, ranges
from .profiler_python import PythonEvent
from .profiler_select import Selection, keep_calls, keep_host_events
from .profiler_util import MEMORY_EVENT_NAME, DeviceActivity, EventList, FunctionEvent, Interval, Kernel
from .ranges import is_recording, record_function

__all__ = ["emit_itt", "emit_nvtx", "kineto_available", "profile", "record_function"]


def _start(
    owner: profile | emit_nvtx,
    shapes: bool = False,
    memory: bool = False,
    stacks: bool = False,
    device: bool = False,
    nvtx: bool = False,
    modules: bool = False,
) -> None:
    if stacks or modules:
        package = os.path.dirname(os.path.dirname(__file__))
        above = os.path.join(package, "tools", "profiler")
        own = [os.path.join(above, name) for name in ("profiler.py", "_memory_notes.py")]
        _C._profiler_codes(offered("Module").__call__.__code__, [__file__, ranges.__file__, *own])
        if sys.getprofile() is not None:
            warnings.warn(
                "profile: sys.setprofile has a function already, so calls of Python's functions and modules "
                "are not recorded",
                stacklevel=4,
            )
    if is_recording() or not _C._profiler_start(shapes, memory, stacks, device, nvtx, modules):
        raise RuntimeError("profile: another profile is running; stop it first")
    ranges.running = owner


def _stop() -> tuple[list[Any], list[Any]]:
    ranges.running = None
    return _C._profiler_stop()


class profile:
    """Records within a `with`; then it is a list of events with sums and tables.

    Args:
        enabled: False records nothing.
        record_shapes: shapes, dtypes and numbers of the arguments of ops.
        with_flops: floating point operations of products, convolutions and attention; turns shapes on.
        profile_memory: bytes that each event allocated and freed.
        with_stack: Python's frames at each op; a backward node has those of its forward op. Calls of
            Python's functions and of modules are in `python_events`, and in the trace.
        with_modules: the modules that an op lies in, as its `module_hierarchy`.
        use_device: "cuda" records what CUDA devices do, by CUPTI.
        use_cuda: the same.
        custom_trace_id_callback: makes the `trace_id`; a random one otherwise.
        activity_filters: by "CPU" and "CUDA", PyTorch's names of the types of activities to keep, as
            "USER_ANNOTATION" or "GPU_MEMCPY"; a group that is not there keeps all of its own.
        use_cpu, use_kineto, experimental_config, acc_events, post_processing_timeout_s: taken for PyTorch's
            programs; they change nothing.

    Raises:
        RuntimeError: another profile runs, or the events are asked for before the end.
        DeviceError: what devices do cannot be recorded; the message says what is missing.
        ValueError: another `use_device`, or an unknown type of activity.
    """

    def __init__(
        self,
        enabled: bool = True,
        *,
        use_cuda: bool = False,
        use_device: str | None = None,
        record_shapes: bool = False,
        with_flops: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_modules: bool = False,
        use_kineto: bool = False,
        use_cpu: bool = True,
        experimental_config: object = None,
        acc_events: bool = False,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
        activity_filters: Mapping[Any, Collection[str]] | None = None,
    ) -> None:
        self.enabled = enabled
        self.record_shapes = record_shapes or with_flops
        self.with_flops, self.profile_memory, self.with_stack = with_flops, profile_memory, with_stack
        self.with_modules = with_modules
        self.use_device = "cuda" if use_cuda else use_device
        if self.use_device not in (None, "cuda"):
            raise ValueError(f'profile: expected use_device None or "cuda", got {use_device!r}')
        if self.use_device and not offered("cuda").is_available():
            warnings.warn("profile: there is no CUDA device; only the CPU is recorded", stacklevel=3)
            self.use_device = None
        self.metadata: dict[str, Any] = {}
        self.device_activities: list[DeviceActivity] = []
        self.memory_events: list[Any] = []
        self.python_events: list[PythonEvent] = []
        self.notes: Any = None  # of what memory is for: a warptape.profiler._memory_notes.MemoryNotes
        self.custom_trace_id_callback, self.trace_id = custom_trace_id_callback, ""
        filters = {getattr(group, "name", group): names for group, names in (activity_filters or {}).items()}
        self._selection = Selection(filters)
        self.wall_start_ns = self.clock_start_ns = 0
        self._events: EventList | None = None

    def __enter__(self) -> profile:
        if not self.enabled:
            return self
        if self._events is not None:
            raise RuntimeError("profile: a profile records once; make another")
        make_id = self.custom_trace_id_callback
        self.trace_id = str(make_id()) if make_id else uuid.uuid4().hex.upper()
        self.wall_start_ns, self.clock_start_ns = time.time_ns(), time.perf_counter_ns()
        _start(
            self,
            self.record_shapes,
            self.profile_memory,
            self.with_stack,
            device=bool(self.use_device),
            modules=self.with_modules,
        )
        return self

    def __exit__(self, *error: object) -> None:
        if not self.enabled or ranges.running is not self:
            return
        events: list[FunctionEvent] = []
        first_of_thread = []
        threads, activities = _stop()
        if self.notes is not None:
            self.notes.stop()
        python = profiler_python.PythonRecord(self.clock_start_ns)
        for thread, found, memory, calls in threads:
            first_of_thread.append(len(events))
            events_of_thread = _events_of(thread, found, len(events), self.clock_start_ns)
            called = python.add(thread, calls) if calls else []
            if self.with_modules:
                python.name_modules(events_of_thread, called)
            events += events_of_thread
            self.memory_events += [(thread, *m) for m in memory]
            if self.notes is not None:
                self.notes.add(memory, events_of_thread)
            events += _frees(thread, memory, len(events), self.clock_start_ns)
        _link_backward(events)
        if self.notes is not None:
            self.notes.finish(events, python.modules)
        if self.with_stack:
            self._keep_python(python)
        kept = keep_host_events(events, self._selection)
        self._keep_activities(activities, events, first_of_thread, set(kept))
        if self.with_flops:
            _count_flops(kept)
        self._events = EventList(
            [*kept, *self._device_events(len(events))],
            use_device=self.use_device,
            profile_memory=self.profile_memory,
            with_flops=self.with_flops,
            write_trace=self._write_trace,
        )

    def _keep_activities(
        self, found: list[Any], events: list[FunctionEvent], firsts: list[int], kept: set[FunctionEvent]
    ) -> None:
        """What devices did, each with the event that launched it if that is kept."""
        for name, category, device, stream, start, end, size, number in found:
            span = Interval((start - self.clock_start_ns) / 1e3, (end - self.clock_start_ns) / 1e3)
            if not self._selection.keeps("CUDA", category, span.start):
                continue
            thread, place = divmod(number - 1, 1 << 32)
            event = events[firsts[thread] + place] if number else None
            event = event if event in kept else None
            done = DeviceActivity(name, category, device, stream, span, size, event)
            self.device_activities.append(done)
            if event:
                event.kernels.append(Kernel(done.name, done.device, span.elapsed_us()))

    def _device_events(self, first: int) -> list[FunctionEvent]:
        """What devices did as events of their own, as PyTorch's lists and tables have it."""
        return [
            FunctionEvent(first + i, a.name, "device", a.stream, a.time_range, device_index=a.device)
            for i, a in enumerate(self.device_activities)
        ]

    def _keep_python(self, record: profiler_python.PythonRecord) -> None:
        self.python_events = keep_calls(record.events, self._selection)
        if record.dropped:
            self.metadata["dropped_python_calls"] = record.dropped
            warnings.warn(
                f"profile: {record.dropped:,} calls of Python's functions came after the first 1,048,576 of "
                "their thread and were not recorded; profile fewer steps",
                stacklevel=4,
            )

    def toggle_collection_dynamic(self, enabled: bool, activities: Iterable[Any]) -> None:
        """Switches CPU or CUDA activities, of `ProfilerActivity`, off or on from now on.

        What begins while its kind is off is not among the events, and not in the trace. It is left out at the
        end of the recording, so a program is as fast while it is off as while it is on.
        """
        now = (time.perf_counter_ns() - self.clock_start_ns) / 1e3
        for activity in activities:
            self._selection.switch(activity.name, enabled, now)

    def keeps_memory_event(self, at: int) -> bool:
        """Whether memory that changed at `at`, in nanoseconds of the clock, is in the trace.

        Args:
            at: nanoseconds.
        """
        return self._selection.keeps("CPU", "cpu_instant_event", (at - self.clock_start_ns) / 1e3)

    @property
    def function_events(self) -> EventList:
        """The events in the order in which they began, thread by thread.

        Raises: RuntimeError before the recording has ended.
        """
        if self._events is None:
            raise RuntimeError("profile: the events are there after the end of the recording")
        return self._events

    def events(self) -> EventList:
        """`function_events`."""
        return self.function_events

    def __iter__(self) -> Iterator[FunctionEvent]:
        return iter(self.function_events)

    def __len__(self) -> int:
        return len(self.function_events)

    def __getitem__(self, index: int) -> FunctionEvent:
        return self.function_events[index]

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> EventList:
        """Sums by name; see `EventList.key_averages`.

        Args:
            group_by_input_shape: whether shapes tell events apart.
            group_by_stack_n: so many frames tell events apart.
            group_by_overload_name: without effect.
        """
        return self.function_events.key_averages(group_by_input_shape, group_by_stack_n)

    def total_average(self) -> Any:
        """One sum over all events.

        Returns:
            A FunctionEventAvg of the name "Total".
        """
        return self.function_events.total_average()

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds of all events together; a moment of a thread counts once, however many are open then.

        Raises: RuntimeError before the recording has ended.
        """
        return self.function_events.self_cpu_time_total

    def table(self, *args: Any, **options: Any) -> str:
        """The events as a table; see `EventList.table`.

        Args:
            *args, **options: of EventList.table.
        """
        return self.function_events.table(*args, **options)

    def export_chrome_trace(self, path: str) -> None:
        """Writes the trace as JSON for Perfetto and chrome://tracing, compressed where `path` ends in .gz.

        Args:
            path: of the file.
        """
        self.function_events.export_chrome_trace(path)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Writes folded stacks; see `EventList.export_stacks`. RuntimeError without `with_stack`.

        Args:
            path: of the file.
            metric: "self_cpu_time_total" or "self_cuda_time_total".
        """
        if not self.with_stack:
            raise RuntimeError("export_stacks: expected a profile with with_stack=True")
        self.function_events.export_stacks(path, metric)

    def _write_trace(self, path: str) -> None:
        profiler_trace.write(path, self)

    def __str__(self) -> str:
        return "<unfinished warptape.autograd.profiler.profile>" if self._events is None else self.table()


def _shape(value: object) -> Any:
    if isinstance(value, tuple):
        return list(value[2]) if value[0] == "tensor" else [_shape(v) for v in value[1]]
    return []


def _name(kind: str, name: str) -> str:
    if kind == "op":
        return f"aten::{name}"
    # All steps together, as in PyTorch; the trace has their numbers.
    return "ProfilerStep*" if kind == "user" and name.startswith("ProfilerStep#") else name


def _events_of(thread: int, found: list[Any], first: int, origin: int) -> list[FunctionEvent]:
    out: list[FunctionEvent] = []
    for i, (
        name,
        kind,
        parent,
        start,
        end,
        sequence,
        memory,
        device_memory,
        args,
        results,
        stack,
    ) in enumerate(found):
        span = Interval((start - origin) / 1e3, (max(start, end) - origin) / 1e3)
        event = FunctionEvent(first + i, _name(kind, name), kind, thread, span, sequence or -1)
        if kind == "user":
            event.trace_name = name
        event.self_cpu_memory_usage, event.self_device_memory_usage = memory, device_memory
        if args is not None:
            event.input_shapes = [_shape(a) for a in args]
            event.input_strides = [
                list(a[3]) if isinstance(a, tuple) and a[0] == "tensor" else [] for a in args
            ]
            event.input_dtypes = [
                str(a[1]) if isinstance(a, tuple) and a[0] == "tensor" else "" for a in args
            ]
            event.concrete_inputs = [None if isinstance(a, tuple) else a for a in args]
            event.output_shapes = [_shape(r) for r in results]
        if stack:
            event.stack = stack.splitlines()
        if parent >= 0:
            event.cpu_parent = out[parent]
            out[parent].cpu_children.append(event)
        out.append(event)
    return out


def _frees(thread: int, memory: list[Any], first: int, origin: int) -> list[FunctionEvent]:
    """Memory that was allocated or freed outside of every event, as one "[memory]" each."""
    out: list[FunctionEvent] = []
    for at, size, _, device, event in memory:
        if event >= 0:
            continue
        us = (at - origin) / 1e3
        memory_event = FunctionEvent(first + len(out), MEMORY_EVENT_NAME, "memory", thread, Interval(us, us))
        if device.type == "cpu":
            memory_event.self_cpu_memory_usage = size
        else:
            memory_event.self_device_memory_usage = size
        out.append(memory_event)
    return out


def _link_backward(events: list[FunctionEvent]) -> None:
    """Finds the op that recorded each node: the last to begin of those that saw a number up to the node's."""
    ops = sorted((e for e in events if e.kind == "op"), key=lambda e: (e.sequence_nr, e.time_range.start))
    numbers = [e.sequence_nr for e in ops]
    for e in events:
        if e.kind != "backward" or e.sequence_nr < 0:
            continue
        at = bisect_right(numbers, e.sequence_nr) - 1
        if at < 0 or ops[at].time_range.start > e.time_range.start:
            continue
        e.forward = ops[at]
        e.stack, e.module_hierarchy = e.stack or ops[at].stack, ops[at].module_hierarchy
    for e in events:  # after those that they lie in
        if e.cpu_parent is not None and (e.kind != "backward" or e.forward is None):
            e.stack = e.stack or e.cpu_parent.stack
            e.module_hierarchy = e.module_hierarchy or e.cpu_parent.module_hierarchy


def _count_flops(events: list[FunctionEvent]) -> None:
    """FLOPs of the outermost ops that have a formula: what these call is part of them."""
    formula_flops = offered("formula_flops")
    for e in events:
        outer = e.cpu_parent
        while outer is not None and not outer.flops:
            outer = outer.cpu_parent
        if e.kind == "op" and outer is None and e.output_shapes:
            args = [shape or value for shape, value in zip(e.input_shapes, e.concrete_inputs, strict=True)]
            e.flops = formula_flops(e.name.removeprefix("aten::"), args, e.output_shapes[0])


class emit_nvtx:
    """Every op and node of a `with` becomes a range for NVIDIA's tools (nsys, ncu): their names, nested.

    Args:
        enabled: False does nothing.
        record_shapes: taken, and changes nothing.

    Raises:
        DeviceError: there is no CUDA device.
        RuntimeError: a profile runs.
    """

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        self.enabled = enabled

    def __enter__(self) -> emit_nvtx:
        if self.enabled:
            _start(self, nvtx=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self.enabled and ranges.running is self:
            _stop()


emit_itt = unusable("torch.autograd.profiler.emit_itt", "ranges for Intel's tools are not emitted")


def kineto_available() -> bool:
    """Whether profiles and traces can be made, which in PyTorch depends on the build.

    Returns:
        True.
    """
    return True
