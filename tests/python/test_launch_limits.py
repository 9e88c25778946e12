"""tools/launch_limits.py: blocks that fit, and those that do not by one warp or one byte."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from launch_limits import check, faults, usage
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


@pytest.mark.parametrize(("arch", "printed"), [("80", 64), ("90a", 1088), ("100f", 1088)])
def test_what_cuobjdump_says(
    arch: str, printed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a kernel with `__shared__ float s[16]`, and of one without: ptxas says 64 bytes for each GPU."""
    tool = tmp_path / "cuobjdump"
    tool.write_text(f"""#!/bin/sh
cat <<'END'
Fatbin elf code:
================
arch = sm_{arch}

Resource usage:
 Common:
  GLOBAL:0
 Function _Z1cPf:
  REG:10 STACK:0 SHARED:{printed} LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z1dPf:
  REG:8 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
END
""")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = [(k.name, k.arch, k.registers, k.shared) for k in usage(tmp_path / "any.o")]
    assert found == [("c", arch, 10, 64), ("d", arch, 8, 0)]
