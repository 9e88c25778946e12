"""tools/instruction_counts.py, and that small calls take no more instructions than they did."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools/instruction_counts.py"
# add took 2,164 with AVX-512 when this was written; other processors and C libraries may take a few more, and
# the product in a linear call depends on the instruction set.
MOST = {"torch.add(a, b)": 2300, "F.linear(x, weight, bias), recorded": 8000}


def counted(*arguments: str) -> str:
    run = subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True, timeout=240)
    if "does not let ptrace step" in run.stderr:
        pytest.skip("ptrace is not allowed here")
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="reads x86-64 registers"
)
@pytest.mark.parametrize("call", MOST)
def test_small_calls_take_few_instructions(call: str) -> None:
    lines = counted("--by-function", call).splitlines()
    total = int(lines[0].split(None, 1)[0])
    assert lines[0].endswith(f"  {call}")
    functions = [re.fullmatch(r" +(\d+)  (.+)", line) for line in lines[1:]]
    assert any(f and "op_vectorcall" in f[2] for f in functions), "the entry of ops was not seen"
    # Each count is rounded, so the parts make up the whole but for half an instruction each.
    assert abs(sum(int(f[1]) for f in functions if f) - total) <= len(functions) / 2 + 1
    assert 500 < total <= MOST[call]
