"""Index arithmetic of the CUDA kernels' common helpers beyond 2^31 elements, compiled alone for the host."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("g++")


@pytest.mark.skipif(
    COMPILER is None or platform.machine() != "x86_64", reason="needs g++ and an x86-64 processor"
)
def test_beyond_32_bits(tmp_path: Path) -> None:
    program = tmp_path / "test_indices"
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-fwrapv"]
    flags += ["-DWARPTAPE_CUDA_EMULATED", "-DWARPTAPE_KERNEL_DEVICE=CUDA", "-fdata-sections"]
    includes = [f"-I{ROOT / folder}" for folder in ("tests/emulator", ".", "kernels/include")]
    source = str(ROOT / "tests/emulator/test_indices.cpp")
    # What a launch would need is never called, and never linked.
    link = ["-Wl,--gc-sections", "-ffunction-sections", "-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run(
        [str(COMPILER), *flags, *includes, source, "-o", str(program), *link], check=True, timeout=600
    )
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
