"""The rules of the Trace Event Format that Perfetto and chrome://tracing hold a profile's trace to.

`faults(text)` reads the JSON as they do and lists what breaks a rule: strict JSON, known phases with the
fields that each needs, times that are finite and in order, complete events of a thread that nest, arrows with
one start and one end, each at a range to hang on, asynchronous ranges in pairs, calls of Python in their
callers, and rows that have names.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

NEEDED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "C": {"name", "pid", "ts", "args"},
    "M": {"name", "pid", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "b": {"name", "cat", "id", "pid", "tid", "ts"},
    "e": {"name", "cat", "id", "pid", "tid", "ts"},
}
Row = tuple[Any, Any]


def refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def ns(us: float) -> int:
    return round(us * 1000)


def form(events: list[dict[str, Any]]) -> list[str]:
    """Phases, fields, times."""
    found = []
    last = -math.inf
    for i, e in enumerate(events):
        phase = e.get("ph")
        if phase not in NEEDED:
            found.append(f"event {i}: phase {phase!r}")
            continue
        if missing := NEEDED[phase] - e.keys():
            found.append(f"event {i}: {phase} without {', '.join(sorted(missing))}")
            continue
        numbers = [e[key] for key in ("ts", "dur") if key in e]
        if any(not isinstance(n, (int, float)) or not math.isfinite(n) or n < 0 for n in numbers):
            found.append(f"event {i}: time {numbers}")
        elif phase != "M":
            if e["ts"] < last:
                found.append(f"event {i}: at {e['ts']} after {last}")
            last = e["ts"]
        if any(type(e[key]) is not int for key in ("pid", "tid") if key in e):
            found.append(f"event {i}: pid and tid are no numbers")
        found += [f"event {i}: {fault}" for fault in values(e)]
    return found


def values(e: dict[str, Any]) -> list[str]:
    """Of fields that a reader takes by their type, else leaves out without a word."""
    found = []
    if any(not isinstance(e[key], str) or not e[key] for key in ("name", "cat") if key in e):
        found.append("name and cat are no text")
    if not isinstance(e.get("args", {}), dict):
        found.append(f"args {e['args']!r}")
    if e["ph"] == "M" and not isinstance(e["args"].get("name"), str):
        found.append("a row's name is no text")
    if e["ph"] == "C" and any(type(n) not in (int, float) for n in e["args"].values()):
        found.append(f"counter {e['args']!r}")
    if e["ph"] == "i" and e["s"] not in ("g", "p", "t"):
        found.append(f"scope {e['s']!r}")
    if e["ph"] == "f" and e["bp"] != "e":
        found.append(f"binding point {e['bp']!r}")
    # Perfetto leaves out arrows whose id is text that is no number; asynchronous ranges may have any.
    if type(e.get("id", 0)) not in ((int,) if e["ph"] in "sf" else (int, str)):
        found.append(f"id {e['id']!r}")
    return found


def nesting(events: list[dict[str, Any]]) -> list[str]:
    """Complete events of a row lie within each other or apart."""
    found = []
    rows: dict[Row, list[dict[str, Any]]] = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            rows[e["pid"], e["tid"]].append(e)
    for row in rows.values():
        row.sort(key=lambda e: (ns(e["ts"]), -ns(e["dur"])))
        running: list[tuple[int, str]] = []
        for e in row:
            start, end = ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])
            while running and running[-1][0] <= start:
                running.pop()
            if running and running[-1][0] < end:
                found.append(f"{e['name']} begins in {running[-1][1]} and ends after it")
            running.append((end, e["name"]))
    return found


def arrows(events: list[dict[str, Any]]) -> list[str]:
    """Each has one start and a later end, at times at which their rows have a range."""
    found = []
    ranges: dict[Row, list[tuple[int, int]]] = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            ranges[e["pid"], e["tid"]].append((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])))
    ends: dict[Any, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for e in events:
        if e["ph"] in "sf":
            ends[e["cat"], e["name"], e["id"]][e["ph"]].append(e)
    for key, pair in ends.items():
        if len(pair["s"]) != 1 or len(pair["f"]) != 1:
            found.append(f"arrow {key}: {len(pair['s'])} starts, {len(pair['f'])} ends")
            continue
        (start,), (end,) = pair["s"], pair["f"]
        if start["ts"] > end["ts"]:
            found.append(f"arrow {key}: ends before it starts")
        for e in (start, end):
            if not any(a <= ns(e["ts"]) <= b for a, b in ranges[e["pid"], e["tid"]]):
                found.append(f"arrow {key}: no range at {e['ts']}")
    return found


def pairs(events: list[dict[str, Any]]) -> list[str]:
    """Of asynchronous ranges."""
    open_: dict[Any, int] = defaultdict(int)
    for e in events:
        if e["ph"] in "be":
            open_[e["cat"], e["id"]] += 1 if e["ph"] == "b" else -1
    return [f"asynchronous range {key} is not in pairs" for key, n in open_.items() if n]


def callers(events: list[dict[str, Any]]) -> list[str]:
    """A call of Python lies in the call that it names, and each has a number of its own."""
    calls = [e for e in events if e["ph"] == "X" and "Python id" in e.get("args", {})]
    known = {e["args"]["Python id"]: e for e in calls}
    found = [] if len(known) == len(calls) else ["calls share a Python id"]
    for e in calls:
        parent = e["args"].get("Python parent id")
        if parent is None:
            continue
        outer = known.get(parent)
        if outer is None or (outer["pid"], outer["tid"]) != (e["pid"], e["tid"]) or outer["ts"] > e["ts"]:
            found.append(f"{e['name']} names the caller {parent}, which it does not lie in")
    return found


def names(events: list[dict[str, Any]]) -> list[str]:
    """Of processes and threads."""
    known: dict[str, set[Any]] = defaultdict(set)
    for e in events:
        if e["ph"] == "M":
            known[e["name"]].add(e["pid"] if e["name"] == "process_name" else (e["pid"], e["tid"]))
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] != "M"}
    unnamed = [f"thread {row} has no name" for row in used - known["thread_name"]]
    return unnamed + [f"process {pid} has no name" for pid in {p for p, _ in used} - known["process_name"]]


def faults(text: str) -> list[str]:
    """What is wrong with a trace; empty where all rules hold."""
    try:
        trace = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return [f"no JSON: {error}"]
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        return ["no list of traceEvents"]
    if trace.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        return [f"displayTimeUnit {trace['displayTimeUnit']!r}"]
    return form(events) or nesting(events) + arrows(events) + pairs(events) + callers(events) + names(events)
