"""Snapshots of a caching allocator, as torch.cuda.memory._snapshot() makes them: read, and drawn."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ...utils.figures import axes_of

__all__ = ["plot_snapshot", "read_snapshot"]

_PACKAGES = ("warptape", "torch")  # whose frames are left out: a line of the program says more
_STATES = {"active_allocated": "#2563eb", "active_pending_free": "#ea580c", "inactive": "#e2e8f0"}


class Actions(NamedTuple):
    """What a snapshot tells of a device's memory.

    Attributes:
        start: of the first action, nanoseconds since the epoch.
        events: nanoseconds, address, and bytes that were taken, or given back as a negative number.
        sites: for each event that took memory, its number and the line that caused it.
        before: address, bytes and line of what is held and was taken before the first action.
    """

    start: int
    events: list[tuple[int, int, int]]
    sites: list[tuple[int, str]]
    before: list[tuple[int, int, str]]


class _Plain(pickle.Unpickler):
    """Numbers, text, lists and dictionaries; a pickle that names a class could run anything."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"snapshot: expected numbers, text, lists and dictionaries, got {module}.{name}")


def _load(snapshot: Mapping[str, Any] | str | os.PathLike[str], device: int) -> Mapping[str, Any]:
    value: Any = snapshot
    if isinstance(snapshot, (str, os.PathLike)):
        try:
            with open(snapshot, "rb") as file:
                value = _Plain(file).load()
        except (pickle.UnpicklingError, EOFError, IndexError, KeyError) as error:
            raise ValueError(f"snapshot: {os.fspath(snapshot)} is no pickle: {error}") from None
    if not isinstance(value, Mapping) or not {"segments", "device_traces"} <= value.keys():
        raise ValueError('snapshot: expected a dictionary with "segments" and "device_traces"')
    if not 0 <= device < len(value["device_traces"]):
        raise ValueError(f"snapshot: it has {len(value['device_traces'])} devices, and none is {device}")
    return value


def _site(frames: list[dict[str, Any]]) -> str:
    """The innermost line of the program, as "train.py:12 in step"."""

    def own(frame: dict[str, Any]) -> bool:
        return not any(f"{os.sep}{name}{os.sep}" in frame["filename"] for name in _PACKAGES)

    frame = next(filter(own, frames), frames[0] if frames else None)
    if frame is None:
        return ""
    return f"{os.path.basename(frame['filename'])}:{frame['line']} in {frame['name']}"


def _held(snapshot: Mapping[str, Any], device: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Addresses and blocks that tensors have."""
    for segment in snapshot["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            if segment.get("device", 0) == device and block["state"] == "active_allocated":
                yield at, block
            at += block["size"]


def read_snapshot(snapshot: Mapping[str, Any] | str | os.PathLike[str], device: int) -> Actions:
    """The actions of a snapshot or of a pickle of one. ValueError where it is none."""
    loaded = _load(snapshot, device)
    trace = loaded["device_traces"][device]
    start = trace[0].get("time_us", 0) * 1000 if trace else 0
    out = Actions(start, [], [], [])
    taken: set[int] = set()
    gone: set[int] = set()  # freed, and the trace has not yet told of another at that address
    for action in trace:
        kind, address = action["action"], action.get("addr", 0)
        at = action.get("time_us", 0) * 1000
        if kind == "alloc":
            out.sites.append((len(out.events), _site(action.get("frames", []))))
            out.events.append((at, address, action["size"]))
            taken.add(address)
            gone.discard(address)
        elif kind in ("free_requested", "free_completed") and address not in gone:
            out.events.append((at, address, -action["size"]))
            taken.discard(address)
            gone.add(address)
    for address, block in _held(loaded, device):
        if address not in taken:
            size = block.get("requested_size", block["size"])
            out.before.append((address, size, _site(block.get("frames", []))))
    return out


def plot_snapshot(snapshot: Mapping[str, Any] | str | os.PathLike[str], to: Any, device: int = 0) -> Any:
    """Draws the segments of a caching allocator, a row each, the largest on top: what tensors have, what
    other streams may still use, and what is free, by which one sees how memory is fragmented.

    Args:
        snapshot: as of `MemoryTimeline.from_snapshot`.
        to: axes of matplotlib, or the path of a picture to write.
        device: the ordinal of the CUDA device.

    Returns:
        The axes. ImportError where matplotlib is missing.

    Raises:
        ValueError: it is no snapshot, or has no such device.
    """
    loaded = _load(snapshot, device)
    segments = [s for s in loaded["segments"] if s.get("device", 0) == device]
    segments.sort(key=lambda s: -s["total_size"])
    with axes_of(to, "plot_snapshot") as axes:
        seen: set[str] = set()
        for row, segment in enumerate(segments):
            left = 0
            for block in segment["blocks"]:
                state = block["state"].replace("awaiting", "pending")
                label = None if state in seen else state
                seen.add(state)
                axes.barh(
                    row,
                    block["size"] / 2**20,
                    left=left / 2**20,
                    color=_STATES[state],
                    edgecolor="white",
                    linewidth=0.4,
                    label=label,
                )
                left += block["size"]
        axes.set_yticks(range(len(segments)), [f"{s['address']:#x}" for s in segments], fontsize="xx-small")
        axes.invert_yaxis()
        held = sum(s["allocated_size"] for s in segments) / 2**20
        reserved = sum(s["total_size"] for s in segments) / 2**20
        axes.set(xlabel=f"MiB of each segment of cuda:{device}; {held:.1f} MiB of {reserved:.1f} MiB held")
        if seen:
            axes.legend(loc="lower right", fontsize="small")
    return axes
