"""The driver of public programs: what counts as a step, what is told of failures, what has a source."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "programs"
PROGRAM = """
import torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range({steps}):
    optimizer.zero_grad()
    loss = torch.nn.functional.dropout(weight, 0.5).square().sum()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    import run

    yield run
    del sys.modules["run"]


def one(run: Any, clones: Path, work: Path) -> dict[str, Any]:
    work.mkdir(exist_ok=True)
    # PERTURB: no PyTorch run left weights to copy
    found: dict[str, Any] = run.run_one("warptape", "regression", clones, work, 1, PERTURB="1")
    return found


def test_steps_are_calls_of_backward(run: Any, tmp_path: Path) -> None:
    script = tmp_path / "examples/regression/main.py"
    script.parent.mkdir(parents=True)
    script.write_text(PROGRAM.format(steps=1000))
    found = one(run, tmp_path, tmp_path / "work")
    assert found["losses"] == pytest.approx([3 * 0.8 ** (2 * i) for i in range(20)], rel=1e-5)
    assert found["seconds"] > 0


def test_failures_are_told(run: Any, tmp_path: Path) -> None:
    assert "there is no" in one(run, tmp_path, tmp_path / "work")["error"]
    script = tmp_path / "examples/regression/main.py"
    script.parent.mkdir(parents=True)
    script.write_text(PROGRAM.format(steps=5))
    assert one(run, tmp_path, tmp_path / "work")["error"] == "5 steps of 20"
    script.write_text("raise ValueError('no data')")
    assert one(run, tmp_path, tmp_path / "work")["error"] == "ValueError: no data"


def test_difference_is_relative_and_needs_as_many_losses(run: Any) -> None:
    assert run.largest([2.0, 4.0], [2.0, 5.0]) == 0.25
    with pytest.raises(ValueError):
        run.largest([1.0, 2.0], [1.0])


def test_every_program_has_a_source_and_a_row(run: Any) -> None:
    from _sources import SOURCES

    text = "".join(file.read_text() for file in FOLDER.glob("_*.py"))
    used = set(re.findall(r'clones / f?"([^"/{]+)', text))
    assert used == set(SOURCES)
    rows = json.loads((ROOT / "benchmarks/results/programs.json").read_text())
    assert [row["program"] for row in rows] == list(run.PROGRAMS)
