"""A kernel that is handed a dtype which it has no code for raises, whatever its author looked at."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import warptape
from time_limits import seconds

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("g++")
PROGRAM = r"""
#include <cstdio>

#include "core/errors.h"
#include "kernels/dispatch.h"

using namespace warptape;
using namespace warptape::kernels;

int done = 0;
void planted(DType dtype) { dispatch(FloatTypes{}, dtype, [](auto) { ++done; }); }
void moved(size_t bytes) { dispatch_size(SizeTypes{}, bytes, [](auto) { ++done; }); }

template <class F>
void report(F&& call) {
  try {
    call();
    std::puts("silent");
  } catch (const DtypeError& e) {
    std::puts(e.what());
  }
}

int main() {
  planted(DType::Float16);
  moved(8);
  if (done != 2) return 1;
  report([] { planted(DType::Complex64); });
  report([] { moved(16); });
  return try_dispatch(FloatTypes{}, DType::Bool, [](auto) {});
}
"""

pytestmark = pytest.mark.skipif(
    COMPILER is None or platform.machine() != "x86_64", reason="needs g++ and an x86-64 processor"
)
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'kernels/include'}"]


def test_unhandled_dtype_raises(tmp_path: Path) -> None:
    source, program = tmp_path / "planted.cpp", tmp_path / "planted"
    source.write_text(PROGRAM)
    folder = Path(warptape.__file__).parent
    link = [str(folder / "libwarptape.so"), f"-Wl,-rpath,{folder}", "-Wl,--allow-shlib-undefined"]
    subprocess.run([str(COMPILER), *FLAGS, str(source), *link, "-o", str(program)], check=True, timeout=600)
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.splitlines() == [
        "planted: not implemented for complex64",
        "moved: not implemented for elements of 16 bytes",
    ]


def test_ignored_answer_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "ignored.cpp"
    source.write_text(PROGRAM.replace("return try_dispatch", "try_dispatch"))
    build = subprocess.run(
        [str(COMPILER), *FLAGS, "-fsyntax-only", str(source)], capture_output=True, text=True, timeout=600
    )
    assert build.returncode != 0 and "nodiscard" in build.stderr


def test_a_processor_below_all_built_instruction_sets_is_told_so() -> None:
    code = "import warptape\ntry:\n    warptape.ones(2) + 1\nexcept NotImplementedError as e:\n    print(e)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds(60),
        env=os.environ | {"WARPTAPE_CPU_LEVEL": "0"},
    )
    assert "no kernel for device cpu; it was built for instruction sets that this processor" in done.stdout
    assert "WARPTAPE_CPU_ISAS" in done.stdout
