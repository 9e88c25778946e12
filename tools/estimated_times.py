"""Each hot CUDA kernel's estimated time on one H200 or H100 beside its target. No GPU is needed.

    python tools/estimated_times.py build/csrc/CMakeFiles/warptape_cuda.dir    objects for sm_90a

Prints two Markdown tables. **The times are estimates from below, not measurements.** A time is the longest of
four, each as if nothing else were in the way:

    memory       bytes that must move, each once / the memory's bandwidth
    arithmetic   operations that the kernel does / the peak of tensor cores or of float32
    issue        instructions of all warps / (4 a clock for each multiprocessor)
    exp          reciprocals, roots, powers and logarithms (MUFU) of all warps / (16 lanes a clock for each)

The last three grow where the last round of blocks does not fill the multiprocessors, given how many blocks
of so many registers, threads and bytes of shared memory fit on one. Instructions are those of hot_path.py:
the body of each loop times the trips that the row names for its shape.

Ignored: latency (of memory, barriers, a chain of dependent instructions) and so whether the warps that fit
hide it; bytes that are read twice or found in the L2 cache; bandwidth of shared memory and of L2, bank
conflicts; launches; clocks below the highest. Products by mma.sync, whose code has no HGMMA, get 62 % of the
peak, which only WGMMA reaches. So a row that misses its target here will hardly meet it on the device (unless
the way through the code was guessed wrong), and one that is "not ruled out" here may still miss it there.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import sass_gate
from estimated_rows import ROWS, Part, Row
from hot_path import hot_path
from sass_gate import Kernel

# NVIDIA H200 data sheet (SXM): 4.8 TB/s; without sparsity 989 TFLOP/s in bfloat16, 1,979 T operations/s in
# int8, 67 TFLOP/s in float32.
BANDWIDTH = 4.8e12
# NVIDIA H100 data sheet (SXM): the same processor, 3.35 TB/s.
H100_BANDWIDTH = 3.35e12
PEAKS = {"bf16": 989e12, "int8": 1979e12, "f32": 67e12}
# mma.sync on Hopper: 62 % of the peak (Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU
# Architecture, arXiv 2402.13499, section on tensor cores).
MMA_SYNC = 0.62
# NVIDIA H100 white paper, whose GPU the H200 has: 132 multiprocessors, 128 float32 units in each. The data
# sheet's float32 peak is two operations a clock of each, which gives 1.98 GHz.
PROCESSORS = 132
CLOCK = PEAKS["f32"] / (PROCESSORS * 128 * 2)
# CUDA C++ Programming Guide, compute capability 9.0: 4 warp schedulers of an instruction a clock; technical
# specifications: 64 warps, 32 blocks, 64 K registers, 228 KB of shared memory a multiprocessor, of which 1 KB
# a block is the system's; arithmetic instructions: 16 reciprocals or the like a clock.
SCHEDULERS, WARP = 4, 32
MOST_WARPS, MOST_BLOCKS, REGISTERS, SHARED_BYTES = 64, 32, 64 * 1024, 228 * 1024
SPECIAL_LANES = 16
REGISTER_UNIT = 256  # a warp's registers are given in multiples of this (the guide's occupancy calculator)


class Estimate(NamedTuple):
    """Of one kernel: what fits and the four times, in seconds."""

    registers: int
    blocks: int  # on one multiprocessor
    warps: int
    slots: float  # instructions that a warp issues
    memory: float
    arithmetic: float
    issue: float
    special: float

    @property
    def time(self) -> float:
        return max(self.memory, self.arithmetic, self.issue, self.special)

    @property
    def h100_time(self) -> float:
        memory = self.memory * BANDWIDTH / H100_BANDWIDTH
        return max(memory, self.arithmetic, self.issue, self.special)

    @property
    def limit(self) -> str:
        named = {
            "memory": self.memory,
            "arithmetic": self.arithmetic,
            "issue": self.issue,
            "exp": self.special,
        }
        return max(named, key=lambda name: named[name])


def blocks_that_fit(threads: int, registers: int, shared: int) -> int:
    """Blocks on one multiprocessor; 0 where one does not fit."""
    warps = math.ceil(threads / WARP)
    of_warp = math.ceil(max(registers, 1) * WARP / REGISTER_UNIT) * REGISTER_UNIT
    by_registers = SCHEDULERS * (REGISTERS // SCHEDULERS // of_warp) // warps
    by_shared = SHARED_BYTES // shared if shared else MOST_BLOCKS
    return min(MOST_BLOCKS, MOST_WARPS // warps, by_registers, by_shared)


def last_round(units: float, places: int) -> float:
    """How much longer `units` of equal work take in rounds of `places` than if they could be cut."""
    return math.ceil(units / places) * places / units


def estimate(part: Part, kernel: Kernel, issued: Counter[str]) -> Estimate:
    """Of the instructions that one warp issues, by name."""
    fit = blocks_that_fit(part.threads, kernel.registers, kernel.shared + part.shared)
    if fit == 0:
        raise ValueError(f"{kernel.name}: a block does not fit on a multiprocessor")
    longer = last_round(part.units, PROCESSORS * fit) if part.units else 1.0
    warps = (part.warps or math.ceil(part.threads / WARP)) * part.blocks
    slots = sum(issued.values())
    special = sum(n for name, n in issued.items() if name.startswith("MUFU"))
    clocks = CLOCK * PROCESSORS
    by_mma_sync = part.peak != "f32" and not any("GMMA" in name for name in issued)
    peak = PEAKS[part.peak] * (MMA_SYNC if by_mma_sync else 1)
    return Estimate(
        kernel.registers,
        fit,
        fit * math.ceil(part.threads / WARP),
        slots,
        part.bytes / BANDWIDTH,
        part.operations / peak * longer,
        slots * warps / (SCHEDULERS * clocks) * longer,
        special * warps * WARP / (SPECIAL_LANES * clocks) * longer,
    )


def find_kernel(part: Part, kernels: Iterable[Kernel]) -> Kernel:
    found = [k for k in kernels if k.arch in ("90a", "90") and re.search(part.kernel, k.name)]
    if len(found) != 1:
        names = ", ".join(k.name for k in found) or "none"
        raise ValueError(f"{part.source}: expected one kernel '{part.kernel}' for sm_90a, got {names}")
    return found[0]


def verdict(time: float, row: Row) -> str:
    """What of its targets the row misses."""
    if not row.targets:
        return "no target"
    missed = [t.name for t in row.targets if time > t.seconds]
    return f"**misses {' and '.join(missed)}**" if missed else "not ruled out"


def number(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


TIMES = [
    "kernel",
    "shape",
    "estimated H200, us",
    "estimated H100, us",
    "limit",
    "targets, us",
    "by this estimate",
]
PARTS = [
    "kernel",
    "registers",
    "blocks (occupancy)",
    "issue slots a warp",
    "memory, us",
    "arithmetic, us",
    "issue, us",
    "exp, us",
]


def lines_of(row: Row, parts: Sequence[Estimate]) -> tuple[str, str]:
    """Its lines of both tables. Several kernels have figures one behind the other, their times summed."""

    def each(figures: Iterable[float]) -> str:
        return " + ".join(map(number, figures))

    time = sum(p.time for p in parts)
    times = [
        row.name,
        row.shape,
        f"**{number(time * 1e6)}**",
        number(sum(p.h100_time for p in parts) * 1e6),
        " + ".join(p.limit for p in parts),
        "; ".join(f"{t.name} {number(t.seconds * 1e6)}" for t in row.targets) or "-",
        verdict(time, row),
    ]
    figures = [
        row.name,
        each(p.registers for p in parts),
        " + ".join(f"{p.blocks} ({p.warps / MOST_WARPS:.0%})" for p in parts),
        each(p.slots for p in parts),
        each(p.memory * 1e6 for p in parts),
        each(p.arithmetic * 1e6 for p in parts),
        each(p.issue * 1e6 for p in parts),
        each(p.special * 1e6 for p in parts),
    ]
    return line(times), line(figures)


def line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def tables(rows: Sequence[Row], kernels: dict[str, list[Kernel]]) -> tuple[list[str], list[str], list[str]]:
    """Lines of the times, lines of the figures behind them, and what could not be estimated."""
    times = [line(TIMES), "|" + " --- |" * len(TIMES)]
    figures = [line(PARTS), "|" + " --- |" * len(PARTS)]
    missing = []
    for row in rows:
        parts = []
        try:
            for part in row.parts:
                kernel = find_kernel(part, kernels.get(part.source, []))
                issued = hot_path(kernel.code, part.loops, part.prefer, part.exactly)
                parts.append(estimate(part, kernel, issued))
        except ValueError as error:
            missing.append(f"{row.name}: {error}")
            continue
        for lines, text in zip((times, figures), lines_of(row, parts), strict=True):
            lines.append(text)
    return times, figures, missing


def read(folder: Path, rows: Iterable[Row]) -> dict[str, list[Kernel]]:
    """Kernels of the rows, with their code, by source."""
    parts = [part for row in rows for part in row.parts]
    found: dict[str, list[Kernel]] = {}
    for source in sorted({part.source for part in parts}):
        path = folder / f"{source}.o"
        if not path.exists():
            continue
        wanted = [part.kernel for part in parts if part.source == source]
        kernels = sass_gate.read_kernels(path, keeps_code=True)
        found[source] = [k for k in kernels if any(re.search(w, k.name) for w in wanted)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="with the objects that nvcc made: softmax.cu.o, gemm/mma.cu.o"
    )
    options = parser.parse_args()
    times, figures, missing = tables(ROWS, read(options.folder, ROWS))
    print("\n".join([*times, "", *figures]))
    print("\n".join(missing), file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
