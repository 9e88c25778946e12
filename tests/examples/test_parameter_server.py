"""examples/parameter_server.py as a user runs it, on ranks that are threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "parameter_server.py"


def test_every_way_trains_and_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    arguments = ["--ranks=3", "--seconds=0.4", "--work-ms=1", "--slow-ms=4", "--width=16", f"--out={out}"]
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    results = {each["name"]: each for each in json.loads(out.read_text())}
    assert len(results) == 10 and all(name in done.stdout for name in results)
    for name, each in results.items():
        assert each["loss"] < each["curve"][0][1]  # it learns
        bound = {"synchronous": 0, "all-reduce": 0, "bounded": 4, "asynchronous": 1000}[name.split()[0]]
        assert each["oldest"] <= bound
    assert abs(results["all-reduce"]["busiest"] - 4 / 3) < 0.05  # 2 (n - 1) / n
    assert abs(results["synchronous host"]["busiest"] - 2) < 0.1  # a gradient of each of two workers


def test_too_few_ranks_are_refused() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--ranks=2"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "at least 3" in done.stderr
