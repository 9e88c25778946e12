"""Kernels on the emulated device without the rest of warptape: compiled by themselves, so that a test can
plant faults in them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from time_limits import seconds

ROOT = Path(__file__).resolve().parents[1]
EMULATOR = ROOT / "tests/emulator"
COMPILER = shutil.which("g++")
CACHE = [found] if (found := shutil.which("ccache")) else []
RUNTIME = ("fibers", "launches", "lifetimes", "memory", "streams", "cupti", "races", "traffic", "conversions")
RUNTIME += ("runtime", "asynchronous", "clusters")
# As cmake/Cuda.cmake has them: what shows accesses, and conversions, of kernels to the emulator.
SHOW_ACCESSES = ("-fsanitize=thread", "--param=tsan-distinguish-volatile=1")
SHOW_CONVERSIONS = "-fsanitize=float-cast-overflow"
SHOW_UNSET = "-ftrivial-auto-var-init=pattern"
ORDERS = ("forward", "reverse", "shuffled")
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-fwrapv"]
FLAGS += [f"-I{path}" for path in (EMULATOR, ROOT, ROOT / "kernels/include")]
FLAGS += ["-DWARPTAPE_CUDA_EMULATED", "-DWARPTAPE_KERNEL_DEVICE=CUDA"]

needs_compiler = pytest.mark.skipif(
    COMPILER is None or platform.machine() != "x86_64", reason="needs g++ and an x86-64 processor"
)


def compile_one(source: Path, out: Path, kernel: bool, first: Path = EMULATOR, *more: str) -> Path:
    """Compiles a file of the emulator, or one with kernels, to the object `out`; headers in `first` are taken
    instead of others, and `more` are flags."""
    language = ["-x", "c++", "-fdata-sections"] if kernel else []
    command = [
        *CACHE,
        str(COMPILER),
        f"-I{first}",
        *FLAGS,
        *more,
        *language,
        "-c",
        str(source),
        "-o",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(300), check=False)
    assert done.returncode == 0, done.stderr
    return out


def link(objects: list[Path], out: Path) -> Path:
    """The program `out` of these objects."""
    command = [str(COMPILER), *map(str, objects), "-o", str(out), f"-Wl,-T,{EMULATOR / 'shared.ld'}", "-ldl"]
    subprocess.run([*command, "-pthread"], check=True, timeout=seconds(120))
    return out


class Launch(NamedTuple):
    """A line of WARPTAPE_EMULATOR_TRAFFIC; but for the name, counts."""

    name: str
    requests: int
    sectors: int
    needed: int
    moved: int
    shared_requests: int
    conflicts: int


def read_traffic(path: Path) -> list[Launch]:
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    return [Launch(name, *map(int, counts)) for name, *counts in rows]


#: Bytes. How much more than it must a kernel may move, and how many sectors its requests may touch for each
#: that their bytes need.
SECTOR = 32
MOST_MOVED, MOST_TOUCHED = 1.5, 2.0


def too_much(sectors: float, launches: Sequence[Launch]) -> str:
    """What is wrong with launches that must move so many sectors; empty if nothing is."""
    moved, touched, needed = (
        sum(getattr(launch, name) for launch in launches) for name in ("moved", "sectors", "needed")
    )
    if moved > MOST_MOVED * sectors:
        return f"moves {moved} sectors, not {sectors:.0f}"
    if touched > MOST_TOUCHED * needed:
        return f"requests touch {touched} sectors, their bytes need {needed}"
    return ""


def run_program(
    program: Path, *arguments: object, order: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs it, with its threads in that order and device memory out of reach of the host. `more` are
    variables of the environment."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WARPTAPE_EMULAT")}
    env = clean | {"WARPTAPE_EMULATOR_ORDER": order, "WARPTAPE_EMULATOR_PROTECT": "1"} | more
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds(60), check=False)
