"""The memory timeline of a profile, and the files that torch.profiler's `export_memory_timeline` writes."""

from __future__ import annotations

import base64
import gzip
import io
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._memory import MemoryBlock, MemoryTimeline, _Label, _Work
from ._memory_notes import MemoryChange, MemoryNotes, index_after, outermost_op

__all__ = ["timeline_of", "write_timeline"]

# Places in PyTorch's files, which have two categories more: inputs, and what is not known.
_PLACES = {"parameters": 0, "optimizer state": 1, "activations": 4, "gradients": 5}
_TEMPORARY, _AUTOGRAD_DETAIL, _UNKNOWN = 3, 6, 7
_COLUMNS = 8
_PREEXISTING, _CREATE, _DESTROY = 1, 2, 4


def _work_of(change: MemoryChange, changes: list[MemoryChange], notes: MemoryNotes, origin: int) -> _Work:
    if change.event is None:
        return _Work("", "")
    op = outermost_op(change.event)
    site = op.stack[0] if op.stack else ""
    last = index_after(changes, origin + op.time_range.end * 1e3)
    return _Work(op.name, site, last, op in notes.recorded)


def timeline_of(recording: Any, device: str) -> MemoryTimeline:
    """The timeline of one device, by the clock of the recording, an `autograd.profiler.profile`."""
    notes: MemoryNotes = recording.notes
    changes = [c for c in notes.changes if c.device == device]
    origin = recording.clock_start_ns
    timeline = MemoryTimeline(device="cpu")
    timeline.device, timeline._start = device, origin
    timeline._marks = [(i, _work_of(c, changes, notes, origin)) for i, c in enumerate(changes)]
    timeline._labels = [
        _Label(index_after(changes, n.time), n.address, n.bytes, n.category)
        for n in notes.notes
        if n.device == device
    ]
    timeline._resolve([(c.time, c.address, c.bytes, c.device) for c in changes])
    return timeline


class _Action(NamedTuple):
    nanoseconds: int  # since the profile began
    action: int
    bytes: int  # negative where memory was given back
    place: int


def _place_of(block: MemoryBlock) -> int:
    if block.category in _PLACES:
        return _PLACES[block.category]
    if block._first < 0 or not block.op:
        return _UNKNOWN
    return _AUTOGRAD_DETAIL if block.op.endswith("Backward0") else _TEMPORARY


def _actions(timeline: MemoryTimeline) -> Iterator[_Action]:
    for block in timeline.blocks:
        place, born = _place_of(block), round(block.born * 1e9)
        yield _Action(born, _PREEXISTING if block._first < 0 else _CREATE, block.bytes, place)
        if block.died is not None:
            yield _Action(round(block.died * 1e9), _DESTROY, -block.bytes, place)


def _points(actions: list[_Action]) -> tuple[list[int], list[list[int]]]:
    """Microseconds, and for each a 0, on which plots are stacked, and the bytes by category."""
    times: list[int] = []
    sizes: list[list[int]] = []
    for at, _, size, place in actions:
        if not times or times[-1] != at // 1000:
            times.append(at // 1000)
            sizes.append(list(sizes[-1]) if sizes else [0] * (1 + _COLUMNS))
        sizes[-1][1 + place] += size
    return times, sizes


def _page(timeline: MemoryTimeline) -> str:
    picture = io.BytesIO()
    timeline.plot(picture)
    encoded = base64.b64encode(picture.getvalue()).decode()
    return (
        f'<html>\n<head><meta charset="utf-8"><title>Memory of {timeline.device}</title></head>\n'
        f'<body>\n<img src="data:image/png;base64,{encoded}">\n'
        f"<pre>{timeline.report().replace('&', '&amp;').replace('<', '&lt;')}</pre>\n</body>\n</html>\n"
    )


def write_timeline(timeline: MemoryTimeline, path: str) -> None:
    """Writes a page for ".html", raw actions for ".raw.json.gz", points otherwise, compressed for ".gz"."""
    if path.endswith(".html"):
        text = _page(timeline)
    else:
        actions = sorted(_actions(timeline), key=lambda a: (a.nanoseconds, a.action != _PREEXISTING))
        text = json.dumps(actions if path.endswith(".raw.json.gz") else _points(actions))
    with gzip.open(path, "wt") if path.endswith(".gz") else open(path, "w", encoding="utf-8") as file:
        file.write(text)
