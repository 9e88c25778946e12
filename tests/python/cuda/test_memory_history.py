"""Snapshots of the caching allocator and the history of its actions, by the names of torch.cuda.memory."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warptape as torch
from warptape.cuda.memory import _dump_snapshot, _record_memory_history, _snapshot, memory_snapshot
from warptape.profiler import MemoryTimeline, plot_snapshot

pytestmark = pytest.mark.cuda
MIB = 1 << 20


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    torch.cuda.empty_cache()
    yield
    _record_memory_history(None)


def take(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB - 100, dtype=torch.uint8, device="cuda")


def actions(found: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return (found or _snapshot())["device_traces"][0]


def kinds(found: dict[str, Any] | None = None) -> list[str]:
    return [e["action"] for e in actions(found)]


def block_of(t: torch.Tensor, found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    ((segment, block),) = [
        (s, b) for s in found["segments"] for b in s["blocks"] if b["address"] == t.data_ptr()
    ]
    return segment, block


def check(found: dict[str, Any]) -> None:
    """What holds of every snapshot."""
    assert len(found["device_traces"]) == torch.cuda.device_count()
    for s in found["segments"]:
        at = s["address"]
        for b in s["blocks"]:
            assert b["address"] == at and b["state"] in (
                "active_allocated",
                "active_pending_free",
                "inactive",
            )
            assert b["requested_size"] <= b["size"]
            at += b["size"]
        assert at == s["address"] + s["total_size"]
        held = [b["size"] for b in s["blocks"] if b["state"] == "active_allocated"]
        assert s["allocated_size"] == sum(held) <= s["active_size"] <= s["total_size"]
    here = [s for s in found["segments"] if s["device"] == 0]
    assert sum(s["total_size"] for s in here) == torch.cuda.memory_reserved(0)
    assert sum(s["allocated_size"] for s in here) == torch.cuda.memory_allocated(0)


def test_segments_and_blocks() -> None:
    x, y = take(3), take(2)
    del y
    found = _snapshot()
    check(found)
    segment, block = block_of(x, found)
    assert block["state"] == "active_allocated" and block["requested_size"] == 3 * MIB - 100
    assert block["size"] == 3 * MIB and block["frames"] == []
    assert segment["segment_type"] == "large" and segment["total_size"] == 20 * MIB
    assert [b["state"] for b in segment["blocks"]] == ["active_allocated", "inactive"]
    assert segment["stream"] == 0 and segment["segment_pool_id"] == (0, 0)
    small = torch.ones(3, device="cuda")
    assert block_of(small, _snapshot())[0]["segment_type"] == "small"
    assert memory_snapshot() == _snapshot()["segments"] == torch.cuda.memory_snapshot()
    assert kinds() == []  # nothing is recorded unasked


def test_actions_in_their_order() -> None:
    _record_memory_history()
    x = take(3)
    address = x.data_ptr()
    del x
    torch.cuda.empty_cache()
    found = _snapshot()
    check(found)
    trace = actions(found)
    assert kinds(found) == [
        "segment_alloc", "alloc", "free_requested", "free_completed", "segment_free", "snapshot",
    ]  # fmt: skip
    assert [e["size"] for e in trace[:5]] == [20 * MIB, *[3 * MIB - 100] * 3, 20 * MIB]
    assert all(e["addr"] == address and e["stream"] == 0 for e in trace[:5])
    times = [e["time_us"] for e in trace]
    assert times == sorted(times) and times[0] > 1.7e15


def test_frames_name_the_lines() -> None:
    _record_memory_history()
    x = take(2)  # this line
    y = torch.ones(300_000, device="cuda").exp()  # large, and its op lets go of the GIL
    del y
    line = test_frames_name_the_lines.__code__.co_firstlineno + 2
    found = _snapshot()
    block = block_of(x, found)[1]
    assert [(f["name"], f["line"]) for f in block["frames"][:2]] == [
        ("take", take.__code__.co_firstlineno + 1),
        ("test_frames_name_the_lines", line),
    ]
    assert block["frames"][0]["filename"] == __file__
    first = next(e for e in actions(found) if e["action"] == "alloc")
    assert first["frames"] == block["frames"]
    exp = [e for e in actions(found) if e["action"] == "alloc"][-1]
    assert (exp["frames"][0]["line"], exp["frames"][0]["name"]) == (line + 1, "test_frames_name_the_lines")
    freed = [e for e in actions(found) if e["action"] == "free_requested"][-1]
    assert (freed["frames"][0]["line"], freed["frames"][0]["name"]) == (
        line + 2,
        "test_frames_name_the_lines",
    )


def test_a_backward_pass_has_frames() -> None:
    w = torch.ones(400_000, device="cuda", requires_grad=True)
    loss = (w * w).sum()
    _record_memory_history()
    loss.backward()
    taken = [e for e in actions() if e["action"] == "alloc"]
    assert taken and all(e["frames"] for e in taken)
    assert any("test_a_backward_pass_has_frames" in f["name"] for f in taken[0]["frames"])


@pytest.mark.parametrize(
    ("context", "held", "taken", "freed"),
    [
        (None, False, False, False), ("state", True, False, False),
        ("alloc", True, True, True), ("all", True, True, True),
    ],
)  # fmt: skip
def test_contexts(context: str | None, held: bool, taken: bool, freed: bool) -> None:
    _record_memory_history(context=context)
    x, y = take(1), take(1)
    del y
    found = _snapshot()
    assert bool(block_of(x, found)[1]["frames"]) == held
    trace = {e["action"]: bool(e["frames"]) for e in actions(found)}
    assert trace["alloc"] == taken and trace["free_requested"] == freed
    if context == "alloc":  # of a free, the stack is that of what it frees
        (free,) = [e for e in actions(found) if e["action"] == "free_requested"]
        assert free["frames"][0]["name"] == "take"


def test_state_keeps_no_actions() -> None:
    _record_memory_history("state")
    x = take(1)
    assert kinds() == [] and block_of(x, _snapshot())[1]["frames"][0]["name"] == "take"


def test_the_latest_are_kept() -> None:
    _record_memory_history(max_entries=5)
    for _ in range(10):
        take(1)
    assert len(actions()) == 5 and kinds()[-1] == "snapshot"
    times = [e["time_us"] for e in actions()]
    assert times == sorted(times)
    _record_memory_history(max_entries=3)
    assert kinds()[-1] == "snapshot" and len(actions()) == 3
    _record_memory_history(clear_history=True)
    assert kinds() == ["snapshot"]
    _record_memory_history(None)
    assert kinds() == []


def test_skipped_actions() -> None:
    _record_memory_history(skip_actions=["free_requested", "snapshot"])
    take(1)
    assert "alloc" in kinds() and "free_completed" in kinds()
    assert "free_requested" not in kinds() and "snapshot" not in kinds()


def test_another_stream_delays_a_free() -> None:
    _record_memory_history()
    side = torch.cuda.Stream()
    x = take(2)
    x.record_stream(side)
    address = x.data_ptr()
    del x
    found = _snapshot()
    check(found)
    (state,) = [b["state"] for s in found["segments"] for b in s["blocks"] if b["address"] == address]
    done = [e["action"] for e in actions(found) if e.get("addr") == address]
    # An emulated stream is done at once; whoever allocates next finds that.
    assert done == ["segment_alloc", "alloc", "free_requested"] and state == "active_pending_free"
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert "free_completed" in kinds()
    (completed,) = [e for e in actions() if e["action"] == "free_completed"]
    assert completed["addr"] == address and completed["frames"][0]["name"] == "take"


def test_no_memory() -> None:
    _record_memory_history()
    total = torch.cuda.mem_get_info()[1]
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 8 * MIB) / total)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            take(64)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    (failed,) = [e for e in actions() if e["action"] == "oom"]
    assert failed["size"] == 64 * MIB - 100 and 0 < failed["device_free"] <= total and "addr" not in failed
    assert failed["frames"][0]["name"] == "take"


def test_pools_of_graphs() -> None:
    _record_memory_history()
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    pool = graph.pool()
    found = _snapshot()
    check(found)
    assert block_of(y, found)[0]["segment_pool_id"] == pool
    assert {s["segment_pool_id"] for s in memory_snapshot(pool)} == {pool}
    assert any(e["pool_id"] == pool for e in actions(found) if e["action"] == "alloc")


def test_wrong_arguments() -> None:
    for wrong in (
        {"enabled": "some"},
        {"context": "free"},
        {"stacks": "c"},
        {"skip_actions": ["frees"]},
        {"max_entries": 0},
    ):
        with pytest.raises(ValueError, match=f"_record_memory_history: expected {next(iter(wrong))}"):
            _record_memory_history(**wrong)
    with pytest.raises(NotImplementedError, match="fx"):
        _snapshot(augment_with_fx_traces=True)


# Opcodes that the page of pytorch.org/memory_viz reads, and it takes protocols 2 to 4.
READABLE = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE", "DICT",
    "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK",
    "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP",
    "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}  # fmt: skip


def test_the_pickle_is_one_that_the_page_reads(tmp_path: Path) -> None:
    _record_memory_history()
    kept = [take(1) for _ in range(300)]
    path = tmp_path / "snapshot.pickle"
    _dump_snapshot(str(path))
    data = path.read_bytes()
    assert {op.name for op, _, _ in pickletools.genops(data)} <= READABLE and data[1] <= 4
    found = pickle.loads(data)
    assert kinds(found)[-1] == "snapshot" and len(kept) == 300
    for e in actions(found):
        expected = {"action", "size", "stream", "pool_id", "time_us", "frames"}
        assert e.keys() == expected | ({"device_free"} if e["action"] == "oom" else {"addr"})


def test_timeline_and_picture(tmp_path: Path) -> None:
    before = take(4)
    _record_memory_history()
    x = take(3)
    for _ in range(2):
        take(8)
    path = tmp_path / "snapshot.pickle"
    _dump_snapshot(str(path))
    timeline = MemoryTimeline.from_snapshot(str(path))
    held = torch.cuda.memory_stats()["requested_bytes.all.current"]
    assert timeline.series()[1]["other"][-1] == held and timeline.device == "cuda:0"
    assert timeline.peak_bytes == held + 8 * MIB - 100
    at_peak = timeline.at_peak()
    assert at_peak[0].bytes == 8 * MIB - 100
    here = f"{Path(__file__).name}:{take.__code__.co_firstlineno + 1} in take"
    assert at_peak[0].site == here and here in timeline.report()
    assert [b.born > 0 for b in timeline.blocks if b.bytes == 4 * MIB - 100] == [False]
    assert x.numel() and before.numel()
    pytest.importorskip("matplotlib")
    timeline.plot(str(tmp_path / "timeline.svg"))
    axes = plot_snapshot(str(path), str(tmp_path / "segments.svg"))
    assert (tmp_path / "segments.svg").stat().st_size > 1000
    blocks = sum(len(s["blocks"]) for s in _snapshot()["segments"] if s["device"] == 0)
    assert len(axes.patches) == blocks


@pytest.mark.parity
def test_pytorchs_tools_read_it() -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    _record_memory_history()
    kept = take(3)
    take(2)
    found = _snapshot()
    text = viz.segsum(found)
    assert f"segments: {len(found['segments'])}" in text and "mismatch" not in text
    listed = viz.trace(found)
    assert "alloc(" in listed or "alloc" in listed
    assert kept.numel() and "MemoryViz.js" in viz.trace_plot(found)
    lines = viz.memory(found, format_flamegraph=lambda text: text)
    assert "active_allocated" in lines and "test_memory_history.py" in lines
