"""benchmarks/gpu_ladder.py names each fault that is planted in its steps, and goes on after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cuda
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
PLANTED = {"device": "crash", "fft": "hang", "random": "sticky", "index": "wrong"}


def test_planted_faults_are_named(tmp_path: Path) -> None:
    out = tmp_path / "ladder.jsonl"
    job = [sys.executable, str(BENCHMARKS / "gpu_ladder.py"), "--out", str(out), "--limit", "30"]
    job += ["--steps", ",".join([*PLANTED, "optimizer"])]
    env = os.environ | {"GPU_LADDER_PLANT": ",".join(f"{step}={kind}" for step, kind in PLANTED.items())}
    done = subprocess.run(job, env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    report = [sys.executable, str(BENCHMARKS / "gpu_report.py"), str(tmp_path)]
    said = subprocess.run(report, capture_output=True, text=True, check=True).stdout
    assert "'passed': 1" in said  # the last step
    for line in (
        "device: crashed, SIGSEGV, in the first check",
        "fft: hung, in the first check",
        "random: raised, IndexError: index",
        "index: wrong",
    ):
        assert line in said, said
