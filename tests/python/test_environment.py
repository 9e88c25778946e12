"""Variables of the environment: by name or number, and refused where they mean nothing."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
from time_limits import seconds

CODE = "import warptape as w; print((w.ones(3) + 1).tolist())"


def run(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        timeout=seconds(60),
        env=os.environ | variables,
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86-64's levels")
def test_levels_by_name() -> None:
    for level in ("avx512bf16", "4", ""):  # what the processor lacks is not taken
        done = run(WARPTAPE_CPU_LEVEL=level)
        assert done.stdout == "[2.0, 2.0, 2.0]\n", done.stderr
    assert "no kernel for device cpu" in run(WARPTAPE_CPU_LEVEL="baseline").stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WARPTAPE_CPU_LEVEL", "avx1"),
        ("WARPTAPE_CPU_LEVEL", "5"),
        ("WARPTAPE_CPU_LEVEL", "-1"),
        ("WARPTAPE_CPU_LEVEL", "avx2 "),
        ("WARPTAPE_NUM_THREADS", "0"),
        ("WARPTAPE_NUM_THREADS", "two"),
        ("WARPTAPE_CPU_CACHE_MB", "1GB"),
        ("WARPTAPE_AMX", "off"),
        ("WARPTAPE_GLOO", "yes"),
        ("WARPTAPE_DROPOUT", "torch"),
        ("WARPTAPE_ATTENTION", "flash"),
        ("WARPTAPE_GROUPED_MM", "tma"),
        ("WARPTAPE_NO_CUDA_MEMORY_CACHING", "true"),
        ("WARPTAPE_LAUNCH_BLOCKING", "on"),
    ],
)
def test_values_without_a_meaning(name: str, value: str) -> None:
    done = run(**{name: value})
    assert done.returncode == 1
    assert f"environment variable {name}: expected " in done.stderr
    assert f"got '{value}'" in done.stderr.splitlines()[-1]
