"""The trace of a profile in the Trace Event Format, which Perfetto, chrome://tracing and TensorBoard read."""

from __future__ import annotations

import gzip
import json
import os
import socket
from typing import Any

from .profiler_util import DeviceActivity, FunctionEvent

__all__ = ["write"]

# By PyTorch's names: tools that read its traces look for these.
_CATEGORIES = {
    "op": "cpu_op",
    "backward": "cpu_op",
    "user": "user_annotation",
    "collective": "user_annotation",
    "region": "cpu_op",
    "kernel": "cpu_op",
}


def _range(e: FunctionEvent, pid: int) -> dict[str, Any]:
    args: dict[str, Any] = {"External id": e.id}
    if e.sequence_nr >= 0:
        args["Sequence number"] = e.sequence_nr
        args["Fwd thread id"] = e.fwd_thread or 0
    if e.input_dtypes:
        args |= {
            "Input Dims": e.input_shapes,
            "Input type": [name.removeprefix("torch.") for name in e.input_dtypes],
            "Input Strides": e.input_strides,
            "Concrete Inputs": ["" if c is None else str(c) for c in e.concrete_inputs],
        }
    if e.stack:
        args["Call stack"] = ";".join(reversed(e.stack))
    if e.flops:
        args["Total FLOPs"] = e.flops
    return {
        "ph": "X",
        "cat": _CATEGORIES[e.kind],
        "name": e.name,
        "pid": pid,
        "tid": e.thread,
        "ts": e.time_range.start,
        "dur": e.time_range.elapsed_us(),
        "args": args,
    }


def _arrow(e: FunctionEvent, pid: int, number: int) -> list[dict[str, Any]]:
    """From the op that recorded a node to the node's backward."""
    assert e.forward is not None
    common = {"cat": "fwdbwd", "name": "fwdbwd", "id": number, "pid": pid}
    return [
        common | {"ph": "s", "tid": e.forward.thread, "ts": e.forward.time_range.start},
        common | {"ph": "f", "tid": e.thread, "ts": e.time_range.start, "bp": "e"},
    ]


def _memory(events: list[Any], origin: int, pid: int) -> list[dict[str, Any]]:
    out = []
    totals: dict[str, int] = {}
    for thread, at, size, address, device, _ in sorted(events, key=lambda m: m[1]):
        total = totals[str(device)] = totals.get(str(device), 0) + size
        cpu = device.type == "cpu"
        args = {
            "Device Type": 0 if cpu else 1,
            "Device Id": -1 if cpu else device.index,
            "Addr": address,
            "Bytes": size,
            "Total Allocated": total,  # since the profile began
        }
        common = {"pid": pid, "tid": thread, "ts": (at - origin) / 1e3}
        out.append(
            common | {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "args": args}
        )
    return out


def _activity(a: DeviceActivity, pid: int, number: int) -> list[dict[str, Any]]:
    """What a device did, and an arrow to it from the event that launched it."""
    args = {"device": a.device, "stream": a.stream} | ({"bytes": a.bytes} if a.bytes else {})
    there = {"pid": a.device, "tid": a.stream, "ts": a.time_range.start, "name": a.name}
    out: list[dict[str, Any]] = [
        there | {"ph": "X", "cat": a.category, "dur": a.time_range.elapsed_us(), "args": args}
    ]
    if a.event:
        arrow = {"cat": "ac2g", "name": "ac2g", "id": number}
        here = {"pid": pid, "tid": a.event.thread, "ts": a.event.time_range.start}
        out += [here | arrow | {"ph": "s"}, there | arrow | {"ph": "f", "bp": "e"}]
    return out


def write(path: str, profile: Any) -> None:
    """Writes the events of `autograd.profiler.profile`, in microseconds since its start."""
    pid = os.getpid()
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "python"}},
    ]
    recorded = [e for e in profile.function_events if e.kind in _CATEGORIES]
    for thread in dict.fromkeys(e.thread for e in recorded):
        name = f"thread {thread}" + (" (main)" if thread == pid else "")
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "args": {"name": name}})
    events += [_range(e, pid) for e in recorded]
    for number, e in enumerate(e for e in recorded if e.forward):
        events += _arrow(e, pid, number)
    for number, activity in enumerate(profile.device_activities):
        events += _activity(activity, pid, number)
    events += _memory(profile.memory_events, profile.clock_start_ns, pid)
    whole = {
        "schemaVersion": 1,
        "host_name": socket.gethostname(),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": profile.wall_start_ns,
        "record_shapes": int(profile.record_shapes),
        "profile_memory": int(profile.profile_memory),
        "with_stack": int(profile.with_stack),
        "with_flops": int(profile.with_flops),
        **profile.metadata,
        "traceEvents": events,
        "traceName": path,
    }
    with gzip.open(path, "wt") if path.endswith(".gz") else open(path, "w") as file:
        json.dump(whole, file)
