"""Timelines and pictures of an allocator's snapshots, made by hand as PyTorch makes them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
from warptape.profiler import MemoryTimeline, plot_snapshot

BASE = 0x7F0000000000


def frames(line: int) -> list[dict[str, Any]]:
    return [
        {"filename": "/venv/site-packages/torch/nn/modules/linear.py", "line": 9, "name": "forward"},
        {"filename": "/home/me/train.py", "line": line, "name": "step"},
    ]


def action(kind: str, place: int, size: int, at: int, line: int = 1) -> dict[str, Any]:
    return {
        "action": kind,
        "addr": BASE + place,
        "size": size,
        "stream": 0,
        "time_us": 1_000_000 + at,
        "frames": frames(line),
    }


def snapshot() -> dict[str, Any]:
    """Block 0 was there before and is freed, block 1000 was there and stays, that at 2000 is taken twice."""
    trace = [
        action("segment_alloc", 2000, 4000, 0),
        action("alloc", 2000, 900, 10, line=5),
        action("free_requested", 0, 500, 20),
        action("free_completed", 0, 500, 21),
        action("free_requested", 2000, 900, 30),
        action("free_completed", 2000, 900, 31),
        action("alloc", 2000, 700, 40, line=7),
        {"action": "oom", "device_free": 5, "size": 10**12, "stream": 0, "time_us": 1_000_050, "frames": []},
        {"action": "snapshot", "addr": 0, "size": 1, "stream": 0, "time_us": 1_000_060, "frames": []},
    ]

    def segment(place: int, blocks: list[tuple[int, int, str]]) -> dict[str, Any]:
        return {
            "device": 0,
            "address": BASE + place,
            "total_size": sum(size for size, _, _ in blocks),
            "allocated_size": sum(size for size, _, state in blocks if state == "active_allocated"),
            "active_size": 0,
            "stream": 0,
            "segment_type": "small",
            "blocks": [
                {"size": size, "requested_size": asked, "state": state, "frames": frames(3)}
                for size, asked, state in blocks
            ],
        }

    return {
        "segments": [
            segment(
                0, [(1000, 0, "inactive"), (512, 400, "active_allocated"), (488, 0, "active_awaiting_free")]
            ),
            segment(2000, [(1024, 700, "active_allocated"), (2976, 0, "inactive")]),
        ],
        "device_traces": [trace, []],
    }


def test_blocks_of_a_snapshot() -> None:
    timeline = MemoryTimeline.from_snapshot(snapshot())
    times, held = timeline.series()
    assert held["other"] == [900, 1800, 1300, 400, 1100]
    assert times == pytest.approx([0, 10e-6, 20e-6, 30e-6, 40e-6])
    assert timeline.peak_bytes == 1800 and timeline.peak_seconds == pytest.approx(10e-6)
    found = {(b.bytes, b.site, b.died is None) for b in timeline.blocks}
    assert found == {
        (500, "", False),  # who took it is not known
        (400, "train.py:3 in step", True),
        (900, "train.py:5 in step", False),
        (700, "train.py:7 in step", True),
    }
    assert "900 bytes other at train.py:5 in step" in timeline.report()
    assert MemoryTimeline.from_snapshot(snapshot(), device=1).blocks == []


def test_a_free_without_its_request() -> None:
    """As `skip_actions` leaves it."""
    found = snapshot()
    found["device_traces"][0] = [e for e in found["device_traces"][0] if e["action"] != "free_requested"]
    assert MemoryTimeline.from_snapshot(found).series()[1]["other"] == [900, 1800, 1300, 400, 1100]


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot()))
    assert MemoryTimeline.from_snapshot(str(path)).peak_bytes == 1800
    assert MemoryTimeline.from_snapshot(path).peak_bytes == 1800
    pytest.importorskip("matplotlib")
    axes = plot_snapshot(path, tmp_path / "segments.png")
    assert (tmp_path / "segments.png").stat().st_size > 1000
    assert len(axes.patches) == 5
    assert {t.get_text() for t in axes.get_legend().get_texts()} == {
        "active_allocated", "active_pending_free", "inactive",
    }  # fmt: skip
    assert [t.get_text() for t in axes.get_yticklabels()] == [f"{BASE + 2000:#x}", f"{BASE:#x}"]


class Bad:
    def __reduce__(self) -> Any:
        return print, ("it runs",)


def test_what_is_no_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.pickle"
    for data, said in (
        (pickle.dumps(Bad()), "expected numbers, text, lists and dictionaries, got builtins.print"),
        (pickle.dumps([1]), 'expected a dictionary with "segments" and "device_traces"'),
        (b"text", "no pickle"),
        (b"", "no pickle"),
    ):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=said):
            MemoryTimeline.from_snapshot(str(path))
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="2 devices, and none is 2"):
        plot_snapshot(snapshot(), io.BytesIO(), device=2)
    with pytest.raises(FileNotFoundError):
        MemoryTimeline.from_snapshot(str(tmp_path / "none.pickle"))
