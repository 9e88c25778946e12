"""The row of benchmarks/gpu.py that times the GEMM ladder's steps beside cuBLASLt."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples/gemm_ladder"))

#: Dense peaks of the tensor cores in bfloat16 and of float32 without them, operations a second, from NVIDIA's
#: data sheets, by what the device's name contains.
PEAKS = {
    "H200": (989.4e12, 66.9e12),
    "H100 80GB HBM3": (989.4e12, 66.9e12),
    "A100-SXM": (312e12, 19.5e12),
}


def peak_of(device: str, variant: str) -> float | None:
    """Of a device by name; None for one that is not known."""
    found = next((peaks for name, peaks in PEAKS.items() if name in device), None)
    return found and found[1 if variant.startswith("float32") else 0]


def ladder_steps() -> Mapping[str, Any]:
    """The steps of the library that GEMM_LADDER names: examples/gemm_ladder/gemm_ladder.py compiles it. Empty
    without one."""
    import gemm_ladder

    path = os.environ.get("GEMM_LADDER")
    return gemm_ladder.load(path) if path else {}


def gemm_ladder(lib: Any, scale: float) -> dict[str, tuple[Callable[[], Any], float]]:
    """Every step that the device has, and the library: float32 at 4096, for the first steps are slow, and
    bfloat16 at 8192. Of PyTorch the library alone."""
    found: dict[str, tuple[Callable[[], Any], float]] = {}
    steps = list(ladder_steps().values()) if lib.__name__ == "warptape" else []
    has = tuple(lib.cuda.get_device_capability())
    for dtype, full in (("float32", 4096), ("bfloat16", 8192)):
        n = max(128, int(full * scale) // 128 * 128)
        a, b = (lib.randn(n, n, device="cuda").to(getattr(lib, dtype)) for _ in range(2))
        work = 2.0 * n**3
        found[f"{dtype} library"] = (lambda a=a, b=b: a @ b, work)
        for step in steps:
            there = has == (9, 0) if step.min_capability == (9, 0) else has >= step.min_capability
            if getattr(lib, dtype) in step.dtypes and there:
                found[f"{dtype} {step.name}"] = (lambda a=a, b=b, step=step: step(a, b), work)
    return found
