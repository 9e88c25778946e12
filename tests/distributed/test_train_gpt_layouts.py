"""examples/train_gpt.py --dp --tp --pp --zero through the launcher: one process's curve, also when it goes on
in another layout."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
import warptape as wt
import warptape.distributed.checkpoint as dcp

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"
TINY = ["--layers", "2", "--heads", "2", "--width", "32", "--block", "32", "--batch", "8", "--lr", "0.01"]
ALL = ["--dp", "2", "--tp", "2", "--pp", "2", "--zero", "1"]


def run(ranks: int, *more: object) -> subprocess.CompletedProcess[str]:
    launch = ["-m", "warptape.distributed.run", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launch, str(SCRIPT), "--eval-every", "10", *map(str, more)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def train(ranks: int, *more: object) -> None:
    done = run(ranks, *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("what next:") == 1, "only rank 0 speaks"


def curve(out: Path) -> dict[str, list[list[float]]]:
    state = {"known": ""}
    dcp.load(state, checkpoint_id=out / "checkpoint")
    return json.loads(state["known"])["history"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    path = tmp_path_factory.mktemp("text") / "text.py"
    path.write_bytes(Path(argparse.__file__).read_bytes()[:30000])
    return [*TINY, "--data", path]


@pytest.fixture(scope="module")
def plain(given: list[object], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[float]]]:
    """The curve of 30 steps in one process."""
    out = tmp_path_factory.mktemp("one")
    train(1, *given, "--steps", 30, "--out", out)
    return wt.load(out / "checkpoint.pt")["history"]


def assert_same_curve(found: dict[str, list[list[float]]], plain: dict[str, list[list[float]]]) -> None:
    for name in ("train", "validation"):
        assert [step for step, _ in found[name]] == [step for step, _ in plain[name]]
        assert [v for _, v in found[name]] == pytest.approx([v for _, v in plain[name]], rel=1e-4)


def test_eight_ranks_have_the_curve_of_one(
    given: list[object], plain: dict[str, list[list[float]]], tmp_path: Path
) -> None:
    train(8, *given, *ALL, "--steps", 30, "--out", tmp_path)
    assert_same_curve(curve(tmp_path), plain)


def test_goes_on_in_other_layouts(
    given: list[object], plain: dict[str, list[list[float]]], tmp_path: Path
) -> None:
    """Four ranks, then two others, then one; settings come from the checkpoint."""
    train(4, *given, "--dp", 2, "--tp", 2, "--zero", 3, "--steps", 10, "--out", tmp_path)
    train(2, "--pp", 2, "--resume", "--steps", 20, "--out", tmp_path)
    train(1, "--dp", 1, "--steps", 30, "--out", tmp_path, "--resume", tmp_path / "checkpoint")
    assert_same_curve(curve(tmp_path), plain)


def test_experts_and_sequences_are_shared_out(given: list[object], tmp_path: Path) -> None:
    """The curve of one process, which is in a folder, too."""
    train(1, *given, "--experts", 4, "--dp", 1, "--steps", 20, "--out", tmp_path / "one")
    layout = ["--dp", 2, "--cp", 2, "--ep", 4]
    train(4, *given, "--experts", 4, *layout, "--steps", 10, "--out", tmp_path / "four")
    train(4, *layout[:2], "--tp", 2, "--ep", 2, "--resume", "--steps", 20, "--out", tmp_path / "four")
    assert_same_curve(curve(tmp_path / "four"), curve(tmp_path / "one"))


@pytest.mark.parametrize(
    "ranks, more, said",
    [
        (2, ["--dp", 2, "--tp", 2], "--dp 2 --tp 2 --pp 1 needs 4 processes and there are 2"),
        (3, ["--tp", 3], "--heads 2: does not divide by --tp 3"),
        (3, ["--pp", 3], "--layers 2: does not divide by --pp 3"),
        (3, ["--dp", 3], "--batch 8: does not divide by --dp 3"),
        (2, ["--dp", 2, "--ep", 2], "--ep 2: does not divide --dp 2 times --cp 1, or --experts 0"),
        (3, ["--cp", 3], "--block 32: does not divide by 2 * --cp 3"),
        (2, ["--dp", 2, "--resume", "nowhere"], "--resume nowhere: cannot be read as a checkpoint"),
        (1, ["--zero", 4], "argument --zero: invalid choice: 4"),
    ],
)
def test_wrong_options_are_one_line(
    ranks: int, more: list[object], said: str, given: list[object], tmp_path: Path
) -> None:
    done = run(ranks, *given, *more, "--steps", 1, "--out", tmp_path)
    assert done.returncode == 2 if ranks == 1 else done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if "train_gpt.py: " in line]
    assert lines
    assert all(said in line for line in lines)
    assert "Traceback" not in done.stderr


def test_a_folder_is_not_read_without_a_layout(given: list[object], tmp_path: Path) -> None:
    done = run(1, *given, "--resume", tmp_path, "--out", tmp_path)
    assert done.returncode == 2
    assert "a folder goes with --dp, --tp, --pp or --zero; in one process --dp 1" in done.stderr
