"""examples/quantize_digits.py as a user runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "quantize_digits.py"


def test_all_ways_are_near_the_float_net():
    pytest.importorskip("sklearn")
    command = [sys.executable, str(SCRIPT), "--epochs", "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\S.*?)\s+(\d\.\d{4}) right\s+(\d+) KiB", done.stdout, re.MULTILINE)
    right = [float(share) for _, share, _ in rows]
    assert len(rows) == 4 and right[0] > 0.97 and all(r >= right[0] - 0.006 for r in right), done.stdout
    assert int(rows[2][2]) < int(rows[0][2]) / 2
