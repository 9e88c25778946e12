"""tools/launch_limits.py: blocks that fit, and those that do not by one warp or one byte."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from launch_limits import check, faults
from sass_gate import Kernel


@pytest.mark.parametrize(
    ("registers", "static", "threads", "dynamic", "fits"),
    [
        (64, 0, 1024, 0, True),
        (65, 0, 1024, 0, False),  # 72 a thread, in units of 256 a warp
        (168, 0, 384, 0, True),
        (255, 0, 256, 0, True),
        (255, 0, 257, 0, False),
        (32, 1024, 256, (48 << 10) - 1024, True),
        (32, 1025, 256, (48 << 10) - 1024, False),
        (32, 1024, 256, 48 << 10, False),  # the attribute is not set for 48 KB of dynamic memory
        (32, 1024, 384, 226 << 10, True),
        (32, 1025, 384, 226 << 10, False),
    ],
)
def test_what_fits(registers: int, static: int, threads: int, dynamic: int, fits: bool) -> None:
    kernel = Kernel("k<float>", "90a", registers=registers, shared=static)
    assert (not faults(kernel, threads, dynamic)) == fits


def test_kernels_are_found_by_name() -> None:
    kernels = [Kernel("a<float>", "90a", registers=65), Kernel("b", "90a", registers=255)]
    found, seen = check({"a<float>": (1024, 0), "c": (32, 0)}, kernels)
    assert seen == 1 and len(found) == 1 and "1024 threads of 65 registers" in found[0]
