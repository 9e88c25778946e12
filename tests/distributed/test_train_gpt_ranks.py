"""examples/train_gpt.py on several processes through the launcher: one process's curve, and restarts."""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warptape as wt

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"
TINY = ["--layers", "2", "--heads", "2", "--width", "32", "--block", "32", "--batch", "4", "--lr", "0.01"]
SMALL = [*TINY, "--steps", "60", "--eval-every", "10"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.py"
    path.write_bytes(Path(argparse.__file__).read_bytes()[:30000])
    return path


def command(ranks: int, restarts: int, text: Path, out: Path) -> list[str]:
    launch = ["-m", "warptape.distributed.run", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    script = [str(SCRIPT), *SMALL, "--data", str(text), "--out", str(out)]
    return [sys.executable, *(launch if ranks > 1 else []), *script]


def finish(started: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = started.communicate(timeout=120)
    assert started.returncode == 0, err
    return out, err


def start(*arguments: object) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command(*arguments), stdout=pipe, stderr=pipe, text=True)  # type: ignore[arg-type]


def curve(out: Path) -> dict[str, list[list[float]]]:
    return wt.load(out / "checkpoint.pt")["history"]


@pytest.fixture(scope="module")
def two_ranks(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of two ranks that nothing happens to leaves."""
    out = tmp_path_factory.mktemp("two")
    said, _ = finish(start(2, 0, text, out))
    assert said.count("step 10 loss") == 1 and said.count("--- sample after 60 steps") == 1, (
        "only rank 0 speaks"
    )
    return out


def test_the_curve_is_that_of_one_process(text: Path, two_ranks: Path, tmp_path: Path) -> None:
    finish(start(1, 0, text, tmp_path))
    one, two = curve(tmp_path), curve(two_ranks)
    for name in ("train", "validation"):
        assert [step for step, _ in one[name]] == [step for step, _ in two[name]]
        assert [v for _, v in two[name]] == pytest.approx([v for _, v in one[name]], rel=1e-4)


def workers(launcher: int) -> dict[int, int]:
    """Process ids of the launcher's workers, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or SCRIPT.name not in (entry / "cmdline").read_text():
                continue
            environment = dict(
                p.split("=", 1) for p in (entry / "environ").read_text().split("\0") if "=" in p
            )
            parents = [int((entry / "stat").read_text().rpartition(")")[2].split()[1])]
            for _ in range(2):
                stat = Path(f"/proc/{parents[-1]}/stat").read_text()
                parents.append(int(stat.rpartition(")")[2].split()[1]))
        except (OSError, ValueError, IndexError):
            continue
        if launcher in parents and "RANK" in environment:
            found[int(environment["RANK"])] = int(entry.name)
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kill" in metafunc.fixturenames:
        metafunc.parametrize("kill", range(metafunc.config.getoption("--kills")))


def test_a_killed_rank_leaves_the_curve_as_it_is(
    kill: int, text: Path, two_ranks: Path, tmp_path: Path
) -> None:
    """SIGKILL of either rank at any moment: all ranks start again and reach the same bits."""
    moment = random.Random(kill)
    victim, after, pause = kill % 2, moment.choice([0, 10, 20, 30]), moment.uniform(0, 0.1)
    (tmp_path / "checkpoint.pt").write_bytes(b"of another run: not to be taken up")
    started = start(2, 1, text, tmp_path)
    assert started.stdout is not None
    for line in started.stdout:
        if line.startswith(f"step {after} ") or (after == 0 and line.startswith("step")):
            break
    mark = time.monotonic() + 10
    while victim not in (running := workers(started.pid)) and time.monotonic() < mark:
        time.sleep(0.01)
    time.sleep(pause)
    os.kill(running[victim], signal.SIGKILL)
    said, errors = finish(started)
    assert "SIGKILL" in errors, errors
    steps = [int(n) for n in re.findall(r"^step (\d+) ", said, flags=re.M)]
    assert steps[-1] == 60, said
    assert curve(tmp_path) == curve(two_ranks)
    ours, theirs = (wt.load(out / "checkpoint.pt")["model"] for out in (tmp_path, two_ranks))
    assert all((ours[name] == theirs[name]).all() for name in theirs)
