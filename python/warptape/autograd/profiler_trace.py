"""The trace of a profile in the Trace Event Format, which Perfetto, chrome://tracing and TensorBoard read."""

from __future__ import annotations

import gzip
import heapq
import json
import os
import socket
from collections.abc import Iterable
from typing import Any

from .profiler_python import PythonEvent
from .profiler_select import HOST_CATEGORIES
from .profiler_util import DeviceActivity, FunctionEvent, Interval

__all__ = ["write"]

_Event = dict[str, Any]


def _us(us: float) -> float:
    """To the nanosecond, so that the ends of nested ranges stay in order."""
    return round(us, 3)


def _span(span: Interval) -> _Event:
    return {"ts": _us(span.start), "dur": _us(_us(span.end) - _us(span.start))}


def _range(e: FunctionEvent, pid: int) -> _Event:
    args: _Event = {"External id": e.id}
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
    if e.module_hierarchy:
        args["Module Hierarchy"] = e.module_hierarchy
    if e.flops:
        args["Total FLOPs"] = e.flops
    common = {"ph": "X", "cat": HOST_CATEGORIES[e.kind], "name": e.trace_name, "pid": pid, "tid": e.thread}
    return common | _span(e.time_range) | {"args": args}


def _call(e: PythonEvent, pid: int) -> _Event:
    args: _Event = {"Python id": e.id, "Python parent id": e.parent.id if e.parent else None}
    if e.module_id >= 0:
        args["Python module id"] = e.module_id
    common = {"ph": "X", "cat": "python_function", "name": e.name, "pid": pid, "tid": e.thread}
    return common | _span(e.time_range) | {"args": args}


def _nested(ranges: Iterable[_Event]) -> list[_Event]:
    """The ranges of one thread so that none reaches partly into another, which readers cannot draw.

    A context manager's `__enter__` returns after its range has begun, and its `__exit__` is called before the
    range ends: such calls end where the range begins, and begin where it ends. A range that crosses another
    otherwise, because it was not the last to begin that was the first to end, becomes a track of its own.
    """
    out: list[_Event] = []
    waiting = [(_ns(e["ts"]), -_ns(e["dur"]), i, e) for i, e in enumerate(ranges)]
    heapq.heapify(waiting)
    number, running = len(waiting), list[tuple[int, _Event]]()  # with their ends
    while waiting:
        start, minus, _, e = heapq.heappop(waiting)
        end = start - minus
        while running and running[-1][0] <= start:
            running.pop()
        while running and running[-1][0] < end and running[-1][1]["cat"] == "python_function":
            cut = running.pop()[1]
            cut["dur"] = _us((start - _ns(cut["ts"])) / 1e3)
        if running and running[-1][0] < end:
            if e["cat"] == "python_function":
                number, later = number + 1, running[-1][0]
                e |= {"ts": later / 1e3, "dur": (end - later) / 1e3}
                heapq.heappush(waiting, (later, later - end, number, e))
            else:
                begin = {k: v for k, v in e.items() if k != "dur"} | {"ph": "b", "id": f"range {len(out)}"}
                out += [begin, begin | {"ph": "e", "ts": end / 1e3, "args": {}}]
            continue
        running.append((end, e))
        out.append(e)
    return out


def _ns(us: float) -> int:
    return round(us * 1e3)


def _arrow(e: FunctionEvent, pid: int, number: int) -> list[_Event]:
    """From the op that recorded a node to the node's backward."""
    assert e.forward is not None
    common = {"cat": "fwdbwd", "name": "fwdbwd", "id": number, "pid": pid}
    return [
        common | {"ph": "s", "tid": e.forward.thread, "ts": _us(e.forward.time_range.start)},
        common | {"ph": "f", "tid": e.thread, "ts": _us(e.time_range.start), "bp": "e"},
    ]


def _memory(events: list[Any], origin: int, pid: int) -> list[_Event]:
    """Each change as an instant of its thread, as PyTorch has it, and the sum as a counter of its device."""
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
        common = {"pid": pid, "tid": thread, "ts": _us((at - origin) / 1e3)}
        out.append(
            common | {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "args": args}
        )
        out.append(common | {"ph": "C", "name": f"memory {device}", "args": {"bytes": total}})
    return out


def _activity(a: DeviceActivity) -> _Event:
    """What a device did."""
    args = {"device": a.device, "stream": a.stream} | ({"bytes": a.bytes} if a.bytes else {})
    common = {"ph": "X", "cat": a.category, "name": a.name, "pid": a.device, "tid": a.stream}
    return common | _span(a.time_range) | {"args": args}


def _launch(a: DeviceActivity, pid: int, number: int) -> list[_Event]:
    """An arrow to what a device did from the event that launched it."""
    assert a.event is not None
    arrow = {"cat": "ac2g", "name": "ac2g", "id": number}
    here = {"pid": pid, "tid": a.event.thread, "ts": _us(a.event.time_range.start)}
    there = {"pid": a.device, "tid": a.stream, "ts": _us(a.time_range.start)}
    return [here | arrow | {"ph": "s"}, there | arrow | {"ph": "f", "bp": "e"}]


def _metadata(
    process: str, pid: int, threads: Iterable[int], streams: Iterable[tuple[int, int]]
) -> list[_Event]:
    """What the rows are called: the process and its threads, then devices and their streams."""

    def named(what: str, of: int, row: int, name: str) -> _Event:
        return {"ph": "M", "name": what, "pid": of, "tid": row, "ts": 0, "args": {"name": name}}

    out = [named("process_name", pid, 0, process)]
    for thread in threads:
        main = " (main)" if thread == pid else ""
        out.append(named("thread_name", pid, thread, f"thread {thread}{main}"))
    devices = set()
    for device, stream in streams:
        if device not in devices:
            devices.add(device)
            out.append(named("process_name", device, 0, f"GPU {device}"))
        out.append(named("thread_name", device, stream, f"stream {stream}"))
    return out


def _all_events(profile: Any, pid: int) -> list[_Event]:
    recorded = [e for e in profile.function_events if e.kind not in ("memory", "device")]
    activities: list[DeviceActivity] = profile.device_activities
    rows: dict[tuple[int, int], list[_Event]] = {}
    calls = [_call(e, pid) for e in profile.python_events]
    for e in [*calls, *(_range(e, pid) for e in recorded), *map(_activity, activities)]:
        rows.setdefault((e["pid"], e["tid"]), []).append(e)
    events = [e for row in rows.values() for e in _nested(row)]
    for number, backward in enumerate(e for e in recorded if e.forward):
        events += _arrow(backward, pid, number)
    for number, activity in enumerate(a for a in activities if a.event):
        events += _launch(activity, pid, number)
    memory = [m for m in profile.memory_events if profile.keeps_memory_event(m[1])]
    events += _memory(memory, profile.clock_start_ns, pid)
    # Of equal times the outer range first, and an arrow after the ranges that it leaves or enters.
    events.sort(key=lambda e: (e["ts"], "dur" not in e, -e.get("dur", 0)))
    threads = {e["tid"]: None for e in events if e["pid"] == pid}
    ranks = profile.metadata.get("distributedInfo")
    rank = ranks.get("rank") if isinstance(ranks, dict) else None
    process = "python" if rank is None else f"python (rank {rank})"
    return _metadata(process, pid, threads, {(a.device, a.stream): None for a in activities}) + events


def write(path: str, profile: Any) -> None:
    """Writes the events of `autograd.profiler.profile`, in microseconds since its start.

    Args:
        path: of the file; compressed where it ends in .gz.
        profile: after the end of its recording.
    """
    document = {
        "schemaVersion": 1,
        "host_name": socket.gethostname(),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": profile.wall_start_ns,
        "record_shapes": int(profile.record_shapes),
        "profile_memory": int(profile.profile_memory),
        "with_stack": int(profile.with_stack),
        "with_flops": int(profile.with_flops),
        "with_modules": int(profile.with_modules),
        "trace_id": profile.trace_id,
        **profile.metadata,
        "traceEvents": _all_events(profile, os.getpid()),
        "traceName": path,
    }
    text = json.dumps(document, allow_nan=False)
    with gzip.open(path, "wt") if path.endswith(".gz") else open(path, "w") as file:
        file.write(text)
