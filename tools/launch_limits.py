"""Whether the largest blocks that tests launch fit on a GPU, without one.

    python tools/launch_limits.py LAUNCHES EMULATED.so OBJECTS...

LAUNCHES is what runs under WARPTAPE_EMULATOR_LAUNCHES wrote: each kernel's place in the emulated plugin, its
most threads and its most dynamic shared memory. OBJECTS, files or folders, are nvcc's. A block must have a
register for each thread of at most 64 K, and static and dynamic shared memory of at most 48 KB, or 227 where
the host asks for more than 48 (CUDA C++ Programming Guide, technical specifications, compute capability 9.0).
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from sass_gate import Kernel, demangle, need_tool

REGISTERS, REGISTER_UNIT, WARP = 64 << 10, 256, 32
PLAIN_SHARED, MOST_SHARED = 48 << 10, 227 << 10
RESERVED = 1 << 10  # the system's, of each block: in cuobjdump's figure from 9.0 on, and in no limit


def launches(file: Path, plugin: Path) -> dict[str, tuple[int, int]]:
    """Most threads and most dynamic shared memory of a kernel, by its demangled name."""
    listed = subprocess.run(["nm", str(plugin)], capture_output=True, text=True, check=True).stdout
    names = {int(p[0], 16): p[2] for line in listed.splitlines() if len(p := line.split()) == 3}
    most: dict[int, tuple[int, int]] = {}
    for line in file.read_text().splitlines():
        place, threads, shared = int((p := line.split())[0], 16), int(p[1]), int(p[2])
        before = most.get(place, (0, 0))
        most[place] = (max(before[0], threads), max(before[1], shared))
    readable = demangle({names[place] for place in most if place in names})
    return {readable[names[place]]: found for place, found in most.items() if place in names}


def usage(file: Path) -> list[Kernel]:
    """Registers and static shared memory of each kernel in an object, for each of its architectures."""
    command = [need_tool("cuobjdump"), "-res-usage", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found, arch = [], ""
    for line in text.splitlines():
        if m := re.match(r"arch = sm_(\w+)", line):
            arch = m[1]
        elif m := re.match(r" Function (\S+):$", line):
            found.append(Kernel(m[1], arch))
        elif m := re.match(r"  REG:(\d+) STACK:\d+ SHARED:(\d+)", line):
            reserved = RESERVED if int(arch.rstrip("af")) >= 90 else 0
            found[-1].registers, found[-1].shared = int(m[1]), max(0, int(m[2]) - reserved)
    readable = demangle(kernel.name for kernel in found)
    for kernel in found:
        kernel.name = readable[kernel.name]
    return found


def faults(kernel: Kernel, threads: int, dynamic: int) -> list[str]:
    """Why a block of so many threads and bytes cannot start."""
    found = []
    of_warp = math.ceil(kernel.registers * WARP / REGISTER_UNIT) * REGISTER_UNIT
    if (needed := of_warp * math.ceil(threads / WARP)) > REGISTERS:
        found.append(f"{threads} threads of {kernel.registers} registers need {needed}, at most {REGISTERS}")
    # The host raises the limit by the dynamic part alone (launch.cuh).
    limit = MOST_SHARED if dynamic > PLAIN_SHARED else PLAIN_SHARED
    if (bytes_ := kernel.shared + dynamic) > limit:
        found.append(f"{kernel.shared} + {dynamic} = {bytes_} bytes of shared memory, at most {limit}")
    return [f"{kernel.name} (sm_{kernel.arch}): {text}" for text in found]


def check(launched: dict[str, tuple[int, int]], kernels: Iterable[Kernel]) -> tuple[list[str], int]:
    """What does not fit, and how many kernels were looked at."""
    found, seen = [], 0
    for kernel in kernels:
        if kernel.name in launched:
            seen += 1
            found += faults(kernel, *launched[kernel.name])
    return found, seen


def main() -> int:
    file, plugin, *paths = map(Path, sys.argv[1:])
    objects = [o for path in paths for o in (sorted(path.rglob("*.cu.o")) if path.is_dir() else [path])]
    launched = launches(file, plugin)
    found, seen = check(launched, (k for o in objects for k in usage(o)))
    print("\n".join(found))
    print(
        f"{len(launched)} kernels were launched, {seen} of them are in the objects, {len(found)} do not fit"
    )
    return 1 if found or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
