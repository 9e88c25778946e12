"""The vector layer of kernels/cpu against plain arithmetic, and its mathematical functions against long
double: for SSE4.2, for AVX2 and AVX-512 where the machine has them, and for NEON where a cross compiler and
QEMU's user mode are installed."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = ["-std=c++20", "-O2", "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
CROSS = "aarch64-linux-gnu-g++"


def run(tmp_path: Path, compiler: list[str], isa: str, before: list[str], source: str) -> str:
    (tmp_path / "program.cpp").write_text(source)
    folders = [f"-I{ROOT / folder}" for folder in ("kernels/include", "csrc", ".")]
    defines = [f"-DWARPTAPE_ISA={isa}", "-DWARPTAPE_ISA_LEVEL=1"]
    program = str(tmp_path / "program")
    subprocess.run(
        [*compiler, *FLAGS, *defines, *folders, str(tmp_path / "program.cpp"), "-o", program], check=True
    )
    result = subprocess.run([*before, program], capture_output=True, text=True)
    assert bool(result.stdout) == bool(result.returncode), result
    return result.stdout


X86 = {"sse42": "x86-64-v2", "avx2": "x86-64-v3", "avx512": "x86-64-v4"}


def runs(isa: str) -> bool:
    flags = {"avx2": {"avx2", "fma", "f16c"}, "avx512": {"avx512f", "avx512dq", "avx512vl", "avx512bw"}}
    info = Path("/proc/cpuinfo")
    return isa not in flags or (info.exists() and flags[isa] <= set(info.read_text().split()))


@pytest.fixture(params=[*X86, "neon"])
def target(request: pytest.FixtureRequest) -> tuple[list[str], str, list[str]]:
    native = platform.machine() == ("aarch64" if request.param == "neon" else "x86_64")
    if native and shutil.which("g++") and runs(request.param):
        return ["g++", *([f"-march={X86[request.param]}"] if request.param in X86 else [])], request.param, []
    if request.param == "neon" and shutil.which(CROSS) and shutil.which("qemu-aarch64"):
        return [CROSS, "-static"], "neon", ["qemu-aarch64"]
    pytest.skip(f"no compiler, or nothing to run {request.param} with")


@pytest.mark.parametrize("broken", [False, True])
def test_vector_layer(target: tuple[list[str], str, list[str]], broken: bool, tmp_path: Path) -> None:
    compiler, isa, before = target
    source = (ROOT / "tests/arch/vector_layer.cpp").read_text()
    if broken:  # the program must be able to find something
        source = source.replace("std::floor(a[i])", "std::ceil(a[i])")
    found = run(tmp_path, compiler, isa, before, source)
    assert "floor is wrong" in found if broken else not found, found


@pytest.mark.parametrize("broken", [False, True])
def test_vector_math(target: tuple[list[str], str, list[str]], broken: bool, tmp_path: Path) -> None:
    compiler, isa, before = target
    source = (ROOT / "tests/arch/vector_math.cpp").read_text()
    if broken:  # by some units in the last place
        source = source.replace("return isa::name(x); }", "return isa::name(x + x * decltype(x)(4e-7)); }")
    found = run(tmp_path, compiler, isa, before, source)
    assert "exp of float64" in found and "erfc of float32" in found if broken else not found, found
