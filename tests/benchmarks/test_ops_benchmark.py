"""The rows of benchmarks/ops.py run, on warptape alone."""

import sys
from pathlib import Path

import pytest
import warptape

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from _op_rows import ROWS  # noqa: E402

# What PyTorch refuses, too, is no row of the result.
SAMPLE = [row for row in ROWS if "[float32]" in row.name or "[" not in row.name]
BACKWARD = ("mul[float32, backward]", "gather[float32, backward]", "cross_entropy of images[backward]")
SAMPLE += [row for row in ROWS if row.name in BACKWARD]


@pytest.mark.parametrize("row", SAMPLE, ids=lambda row: row.name)
def test_a_row_runs(row):
    refused = {"bitwise_not", "bitwise_and", "bitwise_xor", "bitwise_left_shift", "gcd", "lcm"}
    work = row.build(warptape)
    if row.name.split("[")[0] in refused:
        with pytest.raises(RuntimeError):
            work()
    else:
        assert work() is not None
