"""What a type checker sees of the package: programs that are right pass, slips are found.

It needs mypy, which the extra `dev` has, and no build: the stubs are committed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("typed_program.py")
HEAD = """import warptape as torch
import warptape.nn as nn
import warptape.nn.functional as F

x = torch.randn(2, 3)
"""
# A line each, and mypy's code of the error that it must give.
SLIPS = {
    'torch.randn("a")': "arg-type",
    "x.softmx(1)": "attr-defined",
    "torch.sofmax(x, 1)": "attr-defined",
    "torch.no_gard()": "attr-defined",
    "torch.linalg.svdd(x)": "attr-defined",
    "torch.optim.Adamm([x])": "attr-defined",
    "nn.Linea(1, 2)": "attr-defined",
    "F.cross_entropyy(x, x)": "attr-defined",
    "x.max(1).indexes": "attr-defined",
    "F.cross_entropy(x)": "call-arg",
    "F.softmax(x, dimension=1)": "call-arg",
    "x.sum().item(1)": "call-arg",
    'nn.Linear("a", 2)': "arg-type",
    'torch.cat([x], dim="a")': "arg-type",
    "torch.cat(x)": "arg-type",
    'torch.zeros(2, dtype="float")': "arg-type",
    'x.view("a")': "arg-type",
    'x.sum("a")': "arg-type",
    "torch.fft.rfft(x, norm=1)": "arg-type",
    "torch.save()": "call-arg",
    'x + "a"': "operator",
    "name: str = x.softmax(1)": "assignment",
    "from warptape import sofmax": "attr-defined",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy prints of the program, and of a file with the slips."""
    pytest.importorskip("mypy", reason="mypy is not installed (it is in the extra dev)")
    folder = tmp_path_factory.mktemp("types")
    (folder / "slips.py").write_text(HEAD + "\n".join(SLIPS) + "\n")
    options = ["--config-file=", "--follow-imports=silent", f"--cache-dir={folder}", "--no-error-summary"]
    job = [sys.executable, "-m", "mypy", *options, str(PROGRAM), str(folder / "slips.py")]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "python")}
    done = subprocess.run(job, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 1 and not done.stderr, done.stdout + done.stderr
    return done.stdout


def test_program_passes(report: str) -> None:
    assert [line for line in report.splitlines() if "slips.py" not in line] == []


@pytest.mark.parametrize("slip", SLIPS)
def test_slip_is_found(report: str, slip: str) -> None:
    line = HEAD.count("\n") + 1 + list(SLIPS).index(slip)
    codes = re.findall(rf"slips\.py:{line}: error: .*\[(\S+)\]$", report, re.MULTILINE)
    assert SLIPS[slip] in codes, report
