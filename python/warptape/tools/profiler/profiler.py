"""Recordings by a schedule of steps, and what is done with each."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Any

from warptape import core as wt

from ... import cuda
from ..._missing import unusable
from ...autograd import profiler as _recording
from ...autograd.profiler_util import EventList
from ._memory_notes import MemoryNotes
from ._profile_memory import timeline_of, write_timeline

__all__ = [
    "ExecutionTraceObserver",
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]


class ProfilerActivity(Enum):
    """What may be recorded.

    `profile(activities=...)` takes them.
    """

    CPU = 0
    XPU = 1
    MTIA = 2
    CUDA = 3
    HPU = 4
    PrivateUse1 = 5


class ProfilerAction(Enum):
    """What happens in one step.

    A schedule returns one for each step.
    """

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


ExecutionTraceObserver = unusable(
    "torch.profiler.ExecutionTraceObserver", "execution traces (PyTorch's .et.json) are not written"
)


def supported_activities() -> set[ProfilerActivity]:
    """What can be recorded here.

    Returns:
        The CPU, and CUDA where there is a device.
    """
    devices = {ProfilerActivity.CUDA} if cuda.is_available() else set()
    return {ProfilerActivity.CPU} | devices


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
        if step < 0:
            raise ValueError(f"schedule: expected a step of at least 0, got {step}")
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


def _ranks() -> dict[str, Any]:
    """Which rank of which job the trace is of, for tools that put several together."""
    from ... import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return {}
    info = {
        "backend": distributed.get_backend(),
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
    }
    return {"distributedInfo": info}


def _activities_of(
    given: Iterable[ProfilerActivity | Mapping[ProfilerActivity, Collection[str]]],
) -> tuple[set[ProfilerActivity], dict[ProfilerActivity, Collection[str]]]:
    """The kinds of activities, and the types to which some of them are confined."""
    activities: set[ProfilerActivity] = set()
    types: dict[ProfilerActivity, Collection[str]] = {}
    for item in given:
        for activity in item if isinstance(item, Mapping) else (item,):
            if not isinstance(activity, ProfilerActivity):
                raise ValueError(f"profile: expected activities of ProfilerActivity, got {activity!r}")
            if activity in activities:
                raise ValueError(f"profile: {activity} is given more than once")
            activities.add(activity)
        types |= item if isinstance(item, Mapping) else {}
    if not activities:
        raise ValueError("profile: expected at least one activity")
    return activities, types


def _observer_of(observer: Any) -> Any:
    missing = [name for name in ("start", "stop", "cleanup") if not callable(getattr(observer, name, None))]
    if observer is not None and missing:
        raise TypeError(
            "profile: expected an execution_trace_observer with start(), stop() and cleanup(), got "
            f"{type(observer).__name__} without {missing[0]}()"
        )
    return observer


def _refuse(constant: str) -> Any:
    raise ValueError(f"profile: {constant} is no JSON, and readers of traces refuse it")


class profile:
    """Records from `start` to `stop`, or within a `with`; with a `schedule`, the steps that it says.

    Args:
        activities: of `ProfilerActivity`; all of `supported_activities()` by default. A dict instead of one
            confines it to PyTorch's types: `{ProfilerActivity.CUDA: ["GPU_MEMCPY"]}`.
        schedule: what to do in step n; without it, everything is recorded.
        on_trace_ready: called with this object when a cycle of the schedule, or all, was recorded.
        record_shapes: shapes, strides, dtypes and numbers of the arguments of ops.
        profile_memory: bytes that each event allocated and freed.
        with_stack: Python's frames at each op, and calls of Python's functions and modules in the trace.
        with_flops: floating point operations of products, convolutions and attention.
        with_modules: the modules that each op lies in, as "Module Hierarchy" in the trace.
        execution_trace_observer: any object with `start()`, `stop()` and `cleanup()`: the first two are
            called as a recording begins and ends, the last at the end of the `with`.
        acc_events: `events()` and `key_averages()` have the events of all cycles, each with times since the
            beginning of its own; a trace has the last cycle.
        custom_trace_id_callback: makes the trace id of each cycle.
        use_cuda: CUDA activities, too, or not; PyTorch's older way.
        experimental_config, post_processing_timeout_s: taken for PyTorch's programs; they change nothing.

    Raises:
        RuntimeError: another profile runs; events are asked for before something was recorded.
        ValueError: an activity that is none, or is there twice; no activity; an unknown type of one.
        TypeError: an observer that is none.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity | Mapping[ProfilerActivity, Collection[str]]] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: object = None,
        execution_trace_observer: object = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
    ) -> None:
        self.activities, self.activity_filters = _activities_of(
            supported_activities() if activities is None else activities
        )
        if use_cuda is not None:
            cuda = {ProfilerActivity.CUDA}
            self.activities = self.activities | cuda if use_cuda else self.activities - cuda
        self.schedule = schedule or (lambda step: ProfilerAction.RECORD)
        self.record_steps = schedule is not None
        self.on_trace_ready, self.step_num = on_trace_ready, 0
        self.current_action, self._running = ProfilerAction.NONE, False
        self.execution_trace_observer = _observer_of(execution_trace_observer)
        self.custom_trace_id_callback = custom_trace_id_callback
        self.profiler: _recording.profile | None = None  # the last recording
        self.acc_events, self._earlier = acc_events, list[EventList]()  # of cycles before the last
        self._options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "with_flops": with_flops,
            "with_modules": with_modules,
            "activity_filters": self.activity_filters,
        }
        if ProfilerActivity.CUDA in self.activities:
            self._options["use_device"] = "cuda"
        _recording.profile(**self._options | {"use_device": None})  # refuses unknown types now
        self._metadata: dict[str, Any] = {}
        self._step: _recording.record_function | None = None

    def _missing_for_memory(self) -> list[str]:
        """What `export_memory_timeline` needs besides."""
        needed = ("record_shapes", "profile_memory", "with_stack")
        return [f"{name}=True" for name in needed if not self._options[name]]

    def _is_recording(self) -> bool:
        return self.current_action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)

    def start(self) -> None:
        """Begins to record, at step 0 of the schedule.

        `with profile() ..` calls it.
        """
        self.current_action, self.step_num = ProfilerAction.NONE, 0
        self._enter(self.schedule(0))

    def _enter(self, action: ProfilerAction) -> None:
        self.current_action = action
        if self._is_recording() and not self._running:
            if self.profiler is not None and self.acc_events:
                self._earlier.append(self.profiler.function_events)
            make_id = self.custom_trace_id_callback
            self.profiler = _recording.profile(**self._options, custom_trace_id_callback=make_id)
            self.profiler.metadata = self._metadata
            self._metadata |= _ranks()
            if not self._missing_for_memory():
                self.profiler.notes = MemoryNotes()
            try:
                self.profiler.__enter__()
            except RuntimeError:
                if self.profiler.notes is not None:
                    self.profiler.notes.stop()
                self.current_action, self.profiler = ProfilerAction.NONE, None
                raise
            self._running = True
            if self.execution_trace_observer is not None:
                self.execution_trace_observer.start()
        if self._is_recording() and self.record_steps:
            self._step = _recording.record_function(f"ProfilerStep#{self.step_num}").__enter__()

    def _leave(self, following: ProfilerAction | None) -> None:
        """A step ends; the recording, too, at the end of all (None) or if the schedule says so."""
        if self._step is not None:
            self._step.__exit__()
            self._step = None
        ends = following in (None, ProfilerAction.NONE, ProfilerAction.WARMUP)
        if not self._running or not (ends or self.current_action is ProfilerAction.RECORD_AND_SAVE):
            return
        assert self.profiler is not None
        if self.execution_trace_observer is not None:
            self.execution_trace_observer.stop()
        self.profiler.__exit__()
        self._running = False
        if following is not None:
            self.current_action = following
        if self.on_trace_ready:
            self.on_trace_ready(self)

    def step(self) -> None:
        """Ends a step of the schedule, and begins the next.

        `on_trace_ready` runs where the schedule says so and sees the number of the new step.
        """
        self.step_num += 1
        following = self.schedule(self.step_num)
        self._leave(following)
        self._enter(following)

    def stop(self) -> None:
        """Ends the recording, and hands over what was recorded since the last `on_trace_ready`.

        `with profile() ..` calls it.
        """
        self._leave(None)
        self.current_action = ProfilerAction.NONE

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        if self.execution_trace_observer is not None:
            self.execution_trace_observer.cleanup()

    def _recorded(self) -> _recording.profile:
        if self.profiler is None:
            raise RuntimeError("profile: nothing was recorded yet")
        return self.profiler

    def events(self) -> EventList:
        """The events of the last recording, thread by thread, in the order in which they began.

        With `acc_events` those of the earlier cycles come before them.
        """
        events = self._recorded().function_events
        return events.after(self._earlier) if self._earlier else events

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> EventList:
        """Sums by name, and by shapes or the innermost frames if asked: see `EventList.table`.

        Args:
            group_by_input_shape: whether shapes tell events apart.
            group_by_stack_n: so many frames tell events apart.
            group_by_overload_name: without effect.
        """
        return self.events().key_averages(group_by_input_shape, group_by_stack_n, group_by_overload_name)

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[ProfilerActivity]) -> None:
        """Switches the collection of `activities` on or off while a recording runs.

        What begins while its kind is off is left out: see `autograd.profiler.profile`. Each recording of a
        schedule begins with all on. Without a recording nothing happens.

        Raises:
            ValueError: an activity that is none.
        """
        chosen = list(activities)
        for activity in chosen:
            if not isinstance(activity, ProfilerActivity):
                raise ValueError(
                    "toggle_collection_dynamic: expected activities of ProfilerActivity, got "
                    + repr(activity)
                )
        if self.profiler is not None and self._is_recording():
            self.profiler.toggle_collection_dynamic(enable, chosen)

    def get_trace_id(self) -> str | None:
        """What names the last recording, also in its trace.

        Returns:
            None before the first recording.
        """
        return None if self.profiler is None else self.profiler.trace_id

    def set_custom_trace_id_callback(self, callback: Callable[[], str] | None) -> None:
        """From the next recording on `callback` makes the trace ids; random ones for None.

        Args:
            callback: without arguments.
        """
        self.custom_trace_id_callback = callback

    def add_metadata(self, key: str, value: str) -> None:
        """Text that goes into the trace.

        Args:
            key: its name.
            value: any text.
        """
        self._metadata[key] = value

    def add_metadata_json(self, key: str, value: str) -> None:
        """A value as JSON that goes into the trace. ValueError for text that is no JSON, and for NaN.

        Args:
            key: its name.
            value: JSON text.
        """
        self._metadata[key] = json.loads(value, parse_constant=_refuse)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """The same as `add_metadata_json`, which may be called before the start, too.

        Args:
            key: its name.
            value: JSON text.
        """
        self.add_metadata_json(key, value)

    def export_chrome_trace(self, path: str, use_python_export: bool = False) -> None:
        """Writes the last recording as JSON for Perfetto and chrome://tracing; compressed for a .gz.

        `use_python_export` is taken for PyTorch's programs: there is one way.
        """
        self._recorded().export_chrome_trace(path)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Writes folded stacks with microseconds, for flame graphs. RuntimeError without `with_stack`.

        Args:
            path: of the file.
            metric: "self_cpu_time_total" or "self_cuda_time_total".
        """
        self._recorded().export_stacks(path, metric)

    def export_memory_timeline(self, path: str, device: str | None = None) -> None:
        """Writes what the memory of a device was for over the last recording, as PyTorch's method does.

        The suffix of `path` says how:

        - ".html": a page with a picture, for which matplotlib is needed, and the largest tensors at the peak.
        - ".json", ".json.gz": `[times, sizes]`, microseconds since the start, and for each of them a 0 and
          the bytes of parameters, optimizer state, inputs, temporaries, activations, gradients, details of
          the backward pass and what is unknown.
        - ".raw.json.gz": `[nanoseconds, action, bytes, category]` for each piece of memory. Action 1 was
          there at the start, 2 was taken, 4 was given back, with bytes below 0; categories count from 0 in
          the order above.

        What memory is for is seen from steps of optimizers, from the modules that were called and from the
        tape. Memory that was there before and belongs to none of them, as the inputs, is not known to a
        profile. `MemoryTimeline` sees more, and has the names of parameters.

        Args:
            path: of the file.
            device: as "cpu" or "cuda:0"; by default the first CUDA device where the profile recorded one.

        Raises:
            ValueError: not all of `record_shapes`, `profile_memory` and `with_stack` were on.
            RuntimeError: nothing was recorded yet.
            ImportError: a page is to be written, and matplotlib is missing.
        """
        if missing := self._missing_for_memory():
            raise ValueError(f"export_memory_timeline: the profile needs {', '.join(missing)}")
        recording = self._recorded()
        if device is None:
            device = "cuda:0" if recording.use_device else "cpu"
        recording.function_events  # noqa: B018  (RuntimeError while it records)
        write_timeline(timeline_of(recording, str(wt.device(device))), path)


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False, use_python_export: bool = False
) -> Callable[[profile], None]:
    """An `on_trace_ready` that writes each trace into a folder, under a name that TensorBoard finds.

    Args:
        dir_name: the folder.
        worker_name: host and process if None.
        use_gzip: whether files are compressed.
        use_python_export: without effect.
    """

    def write(p: profile) -> None:
        os.makedirs(dir_name, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"{worker}.{time.time_ns()}.pt.trace.json" + (".gz" if use_gzip else "")
        p.export_chrome_trace(os.path.join(dir_name, name))

    return write
