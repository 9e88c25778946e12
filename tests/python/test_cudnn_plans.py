"""cuDNN's plans for our convolutions on a device that is not there (tools/cudnn_plans.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import cudnn_plans  # noqa: E402

LINES = """\
stem|float32|rows|forward|any|plan|eng47_k2=2|1024
stem|float32|rows|forward|exact|none|no engine|0
"""


def program(folder: Path, text: str) -> Path:
    """A stand-in for the compiled program that prints `text`."""
    made = folder / "program"
    made.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
    made.chmod(0o755)
    return made


def test_lines_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_plans, "driver_stub", lambda folder: {})
    found = list(cudnn_plans.plans(program(tmp_path, LINES), tmp_path / "device.json"))
    assert [p.found for p in found] == [True, False] and found[0].workspace == 1024
    assert found[1].name == "stem, float32, rows, forward, exact" and found[1].text == "no engine"
    assert "| float32 | rows | 1 of 2 | 0 of 0 | 0 of 0 |" in cudnn_plans.table(found)


@pytest.mark.slow
@pytest.mark.skipif(bool(cudnn_plans.missing()), reason="without CUDA's and cuDNN's headers and libraries")
def test_each_convolution_has_a_plan(tmp_path: Path) -> None:
    """And properties that lack the architecture are refused, so that a plan is one for the device."""
    made = cudnn_plans.build(tmp_path)
    found = list(cudnn_plans.plans(made, ROOT / "tests/cudnn/h200.json"))
    assert len(found) == 528
    assert [f"{p.name}: {p.text}" for p in found if not p.found] == []
    broken = tmp_path / "broken.json"
    broken.write_text((ROOT / "tests/cudnn/h200.json").read_text().replace("deviceVer", "device"))
    with pytest.raises(SystemExit, match="ended with code 1"):
        list(cudnn_plans.plans(made, broken))
