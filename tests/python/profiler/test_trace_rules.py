"""Traces hold to the rules by which Perfetto and chrome://tracing read them; the checker finds faults."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warptape as torch
from trace_rules import faults
from warptape import distributed as dist
from warptape import nn
from warptape.profiler import profile, record_function, schedule


@contextlib.contextmanager
def section(name: str) -> Iterator[None]:
    with record_function(name):
        yield


@record_function("decorated")
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def program() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.DataLoader(torch.randn(6, 8), batch_size=3)
    for batch in data:
        with section("outer"), section("inner"), contextlib.ExitStack() as stack:
            stack.enter_context(record_function("by a stack"))
            loss = decorated(model(batch)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def crossing() -> None:
    first, second = record_function("first"), record_function("second")
    first.__enter__()
    second.__enter__()
    torch.ones(2).exp()
    first.__exit__()
    torch.ones(2).cos()
    second.__exit__()


def in_threads() -> None:
    def work() -> None:
        with record_function("there"):
            program()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def in_ranks() -> None:
    def rank() -> None:
        x = torch.ones(4)
        dist.all_reduce(x, async_op=True).wait()

    dist.simulate(2, rank)


def compiled() -> None:
    f = torch.compile(lambda x: (x.exp() + 1).sum())
    for _ in range(3):
        f(torch.ones(64, 64))


def written(p: profile, path: Path) -> str:
    p.export_chrome_trace(str(path))
    return path.read_text()


@pytest.mark.parametrize("run", [program, crossing, in_threads, in_ranks, compiled])
@pytest.mark.parametrize("stacks", [False, True])
def test_traces_hold_to_the_rules(run: Callable[[], None], stacks: bool, tmp_path: Path) -> None:
    with profile(
        record_shapes=True, profile_memory=True, with_stack=stacks, with_modules=True, with_flops=True
    ) as p:
        run()
    text = written(p, tmp_path / "trace.json")
    assert faults(text) == []
    assert len(json.loads(text)["traceEvents"]) > 10


def test_every_cycle_of_a_schedule(tmp_path: Path) -> None:
    found = []

    def ready(p: profile) -> None:
        found.append(faults(written(p, tmp_path / f"{len(found)}.json")))

    plan = schedule(wait=0, warmup=1, active=2, repeat=2)
    with profile(schedule=plan, on_trace_ready=ready, with_stack=True) as p:
        for _ in range(6):
            program()
            p.step()
    assert found == [[], []]


def test_a_crossing_range_has_a_track_of_its_own(tmp_path: Path) -> None:
    with profile() as p:
        crossing()
    events = json.loads(written(p, tmp_path / "trace.json"))["traceEvents"]
    (begin,) = [e for e in events if e["ph"] == "b"]
    (end,) = [e for e in events if e["ph"] == "e"]
    assert begin["name"] == end["name"] == "second" and begin["id"] == end["id"] and begin["ts"] < end["ts"]
    assert [e["name"] for e in events if e.get("cat") == "user_annotation" and e["ph"] == "X"] == ["first"]


def test_the_process_is_named_by_its_rank(tmp_path: Path) -> None:
    def process() -> str:
        with profile() as p:
            torch.ones(1).exp()
        trace = json.loads(written(p, tmp_path / "trace.json"))
        assert trace.get("distributedInfo", {"world_size": 1})["world_size"] == 1
        return event(trace, name="process_name")["args"]["name"]

    assert process() == "python"
    dist.init_process_group("shm", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert process() == "python (rank 0)"
    finally:
        dist.destroy_process_group()


def test_no_number_that_json_lacks(tmp_path: Path) -> None:
    with profile(record_shapes=True) as p:
        torch.ones(2) * math.nan
        torch.full((2,), math.inf)
    assert faults(written(p, tmp_path / "trace.json")) == []
    with pytest.raises(ValueError, match="NaN is no JSON"):
        p.add_metadata_json("loss", "NaN")


# ---- the checker finds what is planted ----


def good() -> dict[str, Any]:
    def named(what: str, row: int) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": 1, "tid": row, "ts": 0, "args": {"name": "x"}}

    def ranged(name: str, start: float, length: float, row: int = 2) -> dict[str, Any]:
        return {"ph": "X", "cat": "op", "name": name, "pid": 1, "tid": row, "ts": start, "dur": length}

    arrow = {"cat": "flow", "name": "flow", "id": 7, "pid": 1, "tid": 2}
    apart = {"cat": "user", "name": "apart", "id": "r", "pid": 1, "tid": 2}
    events = [
        named("process_name", 0),
        named("thread_name", 2),
        named("thread_name", 3),
        ranged("outer", 10.0, 20.0),
        ranged("inner", 10.0, 5.5),
        arrow | {"ph": "s", "ts": 12.0},
        apart | {"ph": "b", "ts": 14.0},
        ranged("next", 15.5, 2.0),
        ranged("elsewhere", 16.0, 30.0, row=3) | {"args": {"Python id": 0, "Python parent id": None}},
        arrow | {"ph": "f", "ts": 16.0, "bp": "e"},
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": 17.0, "s": "t"},
        {"ph": "C", "name": "memory", "pid": 1, "tid": 2, "ts": 17.0, "args": {"bytes": 4}},
        ranged("called", 20.0, 4.0, row=3) | {"args": {"Python id": 1, "Python parent id": 0}},
        apart | {"ph": "e", "ts": 40.0},
    ]
    return {"traceEvents": events}


def event(trace: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return next(e for e in trace["traceEvents"] if all(e.get(k) == v for k, v in fields.items()))


def drop(trace: dict[str, Any], **fields: Any) -> None:
    trace["traceEvents"].remove(event(trace, **fields))


PLANTED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "phase": (lambda t: event(t, name="inner").update(ph="Q"), "phase 'Q'"),
    "no duration": (lambda t: event(t, name="inner").pop("dur"), "X without dur"),
    "NaN": (lambda t: event(t, name="inner").update(dur=math.nan), "no JSON: NaN"),
    "Infinity in args": (lambda t: event(t, name="inner").update(args={"x": math.inf}), "no JSON: Infinity"),
    "text for a time": (lambda t: event(t, name="inner").update(ts="10"), "time"),
    "negative length": (lambda t: event(t, name="inner").update(dur=-1.0), "time"),
    "out of order": (lambda t: t["traceEvents"].append(t["traceEvents"].pop(3)), "after"),
    "text for a thread": (lambda t: event(t, name="inner").update(tid="2"), "no numbers"),
    "overlaps its neighbour": (
        lambda t: event(t, name="inner").update(dur=6.0),
        "next begins in inner and ends after it",
    ),
    "overlaps its parent": (
        lambda t: event(t, name="next").update(dur=50.0),
        "next begins in outer and ends after it",
    ),
    "overlaps by a nanosecond": (
        lambda t: event(t, name="next").update(dur=14.501),
        "next begins in outer and ends after it",
    ),
    "no end of an arrow": (lambda t: drop(t, ph="f"), "1 starts, 0 ends"),
    "two ends of an arrow": (
        lambda t: t["traceEvents"].insert(10, dict(event(t, ph="f"))),
        "1 starts, 2 ends",
    ),
    "another number": (lambda t: event(t, ph="f").update(id=8), "0 starts, 1 ends"),
    "an arrow to nothing": (lambda t: event(t, ph="f").update(tid=4), "no range"),
    "half a pair": (lambda t: drop(t, ph="e"), "not in pairs"),
    "no name of a thread": (lambda t: drop(t, name="thread_name", tid=3), "thread (1, 3) has no name"),
    "no name of a process": (lambda t: drop(t, name="process_name"), "process 1 has no name"),
    "a name that is none": (lambda t: event(t, name="inner").update(name=None), "no text"),
    "a category that is none": (lambda t: event(t, name="inner").update(cat=""), "no text"),
    "args that are none": (lambda t: event(t, name="inner").update(args=[1]), "args [1]"),
    "a row with a number for a name": (lambda t: event(t, ph="M").update(args={"name": 5}), "row's name"),
    "a counter of text": (lambda t: event(t, ph="C").update(args={"bytes": "4"}), "counter {'bytes': '4'}"),
    "scope": (lambda t: event(t, ph="i").update(s="x"), "scope 'x'"),
    "binding point": (lambda t: event(t, ph="f").update(bp="s"), "binding point 's'"),
    "a number with a point": (lambda t: event(t, ph="s").update(id=1.5), "id 1.5"),
    "an arrow with text for a number": (lambda t: event(t, ph="s").update(id="0.7"), "id '0.7'"),
    "unit of time": (lambda t: t.update(displayTimeUnit="us"), "displayTimeUnit 'us'"),
    "no caller": (lambda t: drop(t, name="elsewhere"), "the caller 0"),
    "a caller of another thread": (
        lambda t: event(t, name="elsewhere").update(tid=2, dur=0.5),
        "the caller 0",
    ),
    "a number twice": (
        lambda t: event(t, name="called")["args"].update({"Python id": 0}),
        "calls share a Python id",
    ),
    "no events": (lambda t: t.pop("traceEvents"), "no list"),
}


def test_a_good_trace_passes() -> None:
    assert faults(json.dumps(good())) == []


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_fault_is_found(what: str) -> None:
    plant, expected = PLANTED[what]
    trace = good()
    plant(trace)
    found = faults(json.dumps(trace))
    assert any(expected in fault for fault in found), found
