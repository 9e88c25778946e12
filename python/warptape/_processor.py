"""What the processor can do, as the system tells: read before the compiled part is loaded, or without it."""

from __future__ import annotations

import platform
from pathlib import Path

#: Flags of /proc/cpuinfo that tell the levels of cmake/Kernels.cmake apart, lowest level first.
_LEVELS = {
    "sse42": ("sse4_2", "popcnt", "ssse3"),
    "avx2": ("avx2", "fma", "bmi2", "f16c"),
    "avx512": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "avx512bf16": ("avx512_bf16",),
}


def cpu_flags() -> set[str]:
    """The processor's feature flags as the kernel names them; empty where /proc/cpuinfo does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return set(line.partition(":")[2].split())
    except OSError:
        pass
    return set()


def usable_isas(flags: set[str]) -> list[str]:
    """The instruction sets of our kernels that a processor with these flags has, lowest first.

    Args:
        flags: as `cpu_flags` gives them.

    >>> from warptape.doctor import usable_isas
    >>> usable_isas(set())
    []
    """
    if platform.machine() == "aarch64":
        return ["neon"]
    usable = []
    for isa, needed in _LEVELS.items():
        if not flags.issuperset(needed):
            break
        usable.append(isa)
    return usable
