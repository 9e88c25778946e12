"""What the caching allocators hold and did: torch.cuda.memory's snapshots, for pytorch.org/memory_viz."""

from __future__ import annotations

import functools
import pickle
import re
import sys
from collections.abc import Sequence
from typing import Any

from .devices import DeviceLike, _cuda, device_count, init

_CONTEXTS = (None, "state", "alloc", "all")  # in the order of MemoryHistoryOptions::Stacks
_FRAME = re.compile(r"(.*)\((-?\d+)\): (.*)")


def _record_memory_history(
    enabled: str | bool | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: DeviceLike = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] | None = None,
) -> None:
    """Starts to record what the allocators of all devices do; `enabled=None` ends it and forgets what was
    recorded.

    Args:
        enabled: "all" keeps the actions and the stacks of blocks that are held, "state" these stacks alone.
        context: of what Python's stacks are kept: "state", blocks that are held; "alloc", also the actions,
            a free with the stack of what it frees; "all", a free with its own; None, nothing.
        stacks: "python" or "all", which differ in PyTorch by frames of C++; here both are Python's.
        max_entries: so many actions of each device are kept, the latest.
        device, compile_context, global_record_annotations: taken for PyTorch's programs; they change nothing.
        clear_history: forgets earlier actions.
        skip_actions: actions that are not recorded, as "free_requested".

    Raises:
        DeviceError: CUDA cannot be used.
        ValueError: another value than those.
    """
    enabled = {True: "all", False: None}.get(enabled, enabled) if isinstance(enabled, bool) else enabled
    for name, value, known in (
        ("enabled", enabled, (None, "state", "all")),
        ("context", context, _CONTEXTS),
        ("stacks", stacks, ("python", "all")),
        *(("skip_actions", action, _cuda.memory_actions) for action in skip_actions or ()),
    ):
        if value not in known:
            raise ValueError(
                f"_record_memory_history: expected {name} of {', '.join(map(repr, known))}, got {value!r}"
            )
    if max_entries < 1:
        raise ValueError(f"_record_memory_history: expected max_entries of at least 1, got {max_entries}")
    kept = min(max_entries, sys.maxsize) if enabled == "all" else 0
    _cuda.record_memory_history(
        enabled is not None, _CONTEXTS.index(context), kept, list(skip_actions or ()), clear_history
    )


@functools.cache
def _frame(line: str) -> dict[str, Any]:
    match = _FRAME.fullmatch(line)
    assert match is not None, line
    return {"filename": match[1], "line": int(match[2]), "name": match[3]}


class _Frames(dict[Any, list[dict[str, Any]]]):
    """Frames by stack, innermost first; equal stacks share theirs, so that a pickle has each once."""

    def __missing__(self, stack: str | None) -> list[dict[str, Any]]:
        self[stack] = stack_frames = [_frame(line) for line in (stack or "").splitlines()]
        return stack_frames


def _segment(device: int, found: tuple[Any, ...], frames: _Frames) -> dict[str, Any]:
    address, size, stream, small, pool, blocks = found
    listed = [
        {"address": at, "size": held, "requested_size": asked, "state": state, "frames": frames[stack]}
        for at, held, asked, state, stack in blocks
    ]
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "allocated_size": sum(b["size"] for b in listed if b["state"] == "active_allocated"),
        "active_size": sum(b["size"] for b in listed if b["state"] != "inactive"),
        "requested_size": sum(b["requested_size"] for b in listed),
        "stream": stream,
        "segment_type": "small" if small else "large",
        "segment_pool_id": (0, pool),
        "is_expandable": False,
        "frames": [],
        "blocks": listed,
    }


def _action(found: tuple[Any, ...], frames: _Frames) -> dict[str, Any]:
    action, address, size, stream, pool, at, stack = found
    return {
        "action": action,
        "device_free" if action == "oom" else "addr": address,
        "size": size,
        "stream": stream,
        "pool_id": (0, pool),
        "time_us": at,
        "frames": frames[stack],
    }


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """What the allocators of all devices hold now, and the actions that `_record_memory_history` recorded.

    Returns:
        "segments": pieces of memory that were taken from a device, each with its "blocks", in the order of
        addresses. The "state" of a block is "active_allocated" (a tensor has it), "active_pending_free"
        (given back, and another stream may still use it) or "inactive". "device_traces": for each device its
        actions, the oldest first: "alloc", "free_requested", "free_completed", "segment_alloc",
        "segment_free", "oom" and "snapshot". Sizes are bytes, a "frame" is {"filename", "line", "name"}, the
        innermost first.

    Raises:
        DeviceError: CUDA cannot be used.
        NotImplementedError: `augment_with_fx_traces`.
    """
    if augment_with_fx_traces:
        raise NotImplementedError(
            "_snapshot: augment_with_fx_traces is not implemented: frames have the lines that ran"
        )
    init()
    frames = _Frames()
    segments, traces = [], []
    for index in range(device_count()):
        held, done = _cuda.memory_snapshot(index)
        segments += [_segment(index, found, frames) for found in held]
        traces.append([_action(found, frames) for found in done])
    settings = {"expandable_segments": False}
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": settings,
        "external_annotations": [],
    }


def _dump_snapshot(filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Writes `_snapshot()` as the pickle that https://pytorch.org/memory_viz reads, and so does
    `warptape.profiler.MemoryTimeline.from_snapshot`.

    Raises:
        OSError: the file cannot be written.
        DeviceError, NotImplementedError: as of `_snapshot`.
    """
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)  # the page's reader knows 2 to 4


def memory_snapshot(
    mempool_id: tuple[int, int] | None = None, include_traces: bool = True
) -> list[dict[str, Any]]:
    """The segments of all allocators: `_snapshot()["segments"]`.

    Args:
        mempool_id: of `CUDAGraph.pool()`: the segments of that pool alone.
        include_traces: taken for PyTorch's programs; segments have no traces.

    Raises:
        DeviceError: CUDA cannot be used.
    """
    segments = _snapshot()["segments"]
    return [s for s in segments if mempool_id is None or s["segment_pool_id"] == tuple(mempool_id)]
