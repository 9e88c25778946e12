"""Summarise what benchmarks/gpu_day.sh left in a folder: python benchmarks/gpu_report.py FOLDER

Prints a line for each step of the ladder, each test that failed or took its process down, and each timed row.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def lines_of(file: Path) -> list[dict[str, Any]]:
    """A file that was cut short may end within a line."""
    found = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")[:160]


def how_it_ended(step: dict[str, Any]) -> str:
    """What a step says of its end: the signal, the check it hung in, or the error."""
    after = f"after {step['after']}" if step.get("after") else "in the first check"
    if step["status"] == "crashed":
        return f"{signal.Signals(-step['code']).name}, {after}"
    return after if step["status"] == "hung" else last_line(step.get("said", ""))


def report(folder: Path) -> list[str]:
    out = []
    steps = lines_of(folder / "ladder.jsonl")
    out.append(f"ladder: {dict(Counter(s['status'] for s in steps))}")
    for step in steps:
        if step["status"] in ("passed", "skipped"):
            continue
        out.append(f"  {step['step']}: {step['status']}, {how_it_ended(step)}")
        for check in step.get("failed", []):
            bits = "" if check["same"] else ", three runs differ"
            out.append(f"    {check['name']}: error {check['error']:.2g} (limit {check['limit']:.2g}){bits}")
    tests = lines_of(folder / "tests.jsonl")
    out.append(f"tests: {dict(Counter(t['outcome'] for t in tests))}")
    out += [f"  {t['test']}: {last_line(t.get('said', ''))}" for t in tests if t["outcome"] == "failed"]
    for row in lines_of(folder / "bench.jsonl"):
        name = f"{row['library']} {row['row']} {row['variant']}".strip()
        if "error" in row:
            out.append(f"  {name}: {row['error']}")
        elif "seconds" in row:
            out.append(f"  {name}: {row['seconds'] * 1e3:.4g} ms, {row['work'] / row['seconds']:.4g}/s")
    return out


if __name__ == "__main__":
    print("\n".join(report(Path(sys.argv[1]))))
