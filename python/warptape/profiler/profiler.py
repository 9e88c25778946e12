"""Recordings by a schedule of steps, and what is done with each."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import warptape

from .._missing import install_getattr as _install_getattr
from ..autograd import profiler as _recording
from ..autograd.profiler_util import EventList

__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]


class ProfilerActivity(Enum):
    """What may be recorded."""

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
    """What can be recorded here: the CPU, and CUDA devices where there are some."""
    cuda = {ProfilerActivity.CUDA} if warptape.cuda.is_available() else set()
    return {ProfilerActivity.CPU} | cuda


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


def _ranks() -> dict[str, Any]:
    """Which rank of which job the trace is of, for tools that put several together."""
    distributed = warptape.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return {}
    info = {
        "backend": distributed.get_backend(),
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
    }
    return {"distributedInfo": info}


def _refuse(constant: str) -> Any:
    raise ValueError(f"profile: {constant} is no JSON, and readers of traces refuse it")


class profile:
    """Records from `start` to `stop`, or within a `with`; with a `schedule`, the steps that it says.

    Args:
        activities: of `ProfilerActivity`; all of `supported_activities()` by default.
        schedule: what to do in step n; without it, everything is recorded.
        on_trace_ready: called with this object when a cycle of the schedule, or all, was recorded.
        record_shapes: shapes, strides, dtypes and numbers of the arguments of ops.
        profile_memory: bytes that each event allocated and freed.
        with_stack: Python's frames at each op, and calls of Python's functions and modules in the trace.
        with_flops: floating point operations of products, convolutions and attention.
        with_modules: the modules that each op lies in, as "Module Hierarchy" in the trace.
        experimental_config, execution_trace_observer, acc_events, use_cuda, custom_trace_id_callback: taken
            for PyTorch's programs; they change nothing.

    Raises:
        RuntimeError: another profile runs; events are asked for before something was recorded.
        ValueError: an activity that is none.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: Any = None,
        execution_trace_observer: Any = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Any = None,
    ) -> None:
        self.activities = set(supported_activities() if activities is None else activities)
        for activity in self.activities:
            if not isinstance(activity, ProfilerActivity):
                raise ValueError(f"profile: expected activities of ProfilerActivity, got {activity!r}")
        self.schedule = schedule or (lambda step: ProfilerAction.RECORD)
        self.record_steps = schedule is not None
        self.on_trace_ready, self.step_num = on_trace_ready, 0
        self.current_action = ProfilerAction.NONE
        self.profiler: _recording.profile | None = None  # the last recording
        self._options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "with_flops": with_flops,
            "with_modules": with_modules,
        }
        if use_cuda or ProfilerActivity.CUDA in self.activities:
            self._options["use_device"] = "cuda"
        self._metadata: dict[str, Any] = {}
        self._step: _recording.record_function | None = None

    def _is_recording(self) -> bool:
        return self.current_action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)

    def start(self) -> None:
        """Begins at step 0 of the schedule."""
        self.current_action, self.step_num = ProfilerAction.NONE, 0
        self._enter(self.schedule(0))

    def _enter(self, action: ProfilerAction) -> None:
        was, self.current_action = self._is_recording(), action
        if self._is_recording() and not was:
            self.profiler = _recording.profile(**self._options)
            self.profiler.metadata = self._metadata
            self._metadata |= _ranks()
            try:
                self.profiler.__enter__()
            except RuntimeError:
                self.current_action, self.profiler = ProfilerAction.NONE, None
                raise
        if self._is_recording() and self.record_steps:
            self._step = _recording.record_function(f"ProfilerStep#{self.step_num}").__enter__()

    def _leave(self, ends: bool) -> None:
        """A step ends; the recording, too, if it `ends` here or if the schedule says so."""
        if self._step is not None:
            self._step.__exit__()
            self._step = None
        if not self._is_recording() or not (ends or self.current_action is ProfilerAction.RECORD_AND_SAVE):
            return
        assert self.profiler is not None
        self.profiler.__exit__()
        self.current_action = ProfilerAction.NONE
        if self.on_trace_ready:
            self.on_trace_ready(self)

    def step(self) -> None:
        """A step of the schedule ends here."""
        following = self.schedule(self.step_num + 1)
        self._leave(following in (ProfilerAction.NONE, ProfilerAction.WARMUP))
        self.step_num += 1
        self._enter(following)

    def stop(self) -> None:
        """Ends, and hands over what was recorded and was not yet handed over."""
        self._leave(True)
        self.current_action = ProfilerAction.NONE

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _recorded(self) -> _recording.profile:
        if self.profiler is None:
            raise RuntimeError("profile: nothing was recorded yet")
        return self.profiler

    def events(self) -> EventList:
        """The events of the last recording, thread by thread, in the order in which they began."""
        return self._recorded().function_events

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> EventList:
        """Sums by name, and by shapes or the innermost frames if asked: see `EventList.table`."""
        return self._recorded().key_averages(group_by_input_shape, group_by_stack_n)

    def add_metadata(self, key: str, value: str) -> None:
        """Text that goes into the trace."""
        self._metadata[key] = value

    def add_metadata_json(self, key: str, value: str) -> None:
        """A value as JSON that goes into the trace. ValueError for text that is no JSON, and for NaN."""
        self._metadata[key] = json.loads(value, parse_constant=_refuse)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """The same as `add_metadata_json`."""
        self.add_metadata_json(key, value)

    def export_chrome_trace(self, path: str) -> None:
        """Writes the last recording as JSON for Perfetto and chrome://tracing; compressed for a .gz."""
        self._recorded().export_chrome_trace(path)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Writes folded stacks with microseconds, for flame graphs. RuntimeError without `with_stack`."""
        self._recorded().export_stacks(path, metric)


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """An `on_trace_ready` that writes each trace into a folder, under a name that TensorBoard finds."""

    def write(p: profile) -> None:
        os.makedirs(dir_name, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"{worker}.{time.time_ns()}.pt.trace.json" + (".gz" if use_gzip else "")
        p.export_chrome_trace(os.path.join(dir_name, name))

    return write


_install_getattr(__name__)
