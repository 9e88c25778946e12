"""The GEMM ladder: matrix products by one kernel a step, from the first tile to Hopper's tensor cores, to be
read, compared and measured (docs/gemm.md). `matmul` does not go through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .. import _C
from ._device import _cuda

_ops: Any = _C._private


@dataclass(frozen=True)
class GemmStep:
    """One step. Tiles are (m, n, k): of a block, of a warp (of "wgmma": a warpgroup) within it, and of a
    thread or, with tensor cores, an instruction. `stages` slices along k lie in shared memory at once; n and
    k must be multiples of `multiple_n` and `multiple_k`.

    Called as `step(a, b)` with a [m, k] and b [k, n] of one of `dtypes` on a GPU, it gives [m, n] in
    their dtype; sums are kept in float32. A step with `epilogue` also takes `bias` [n] and `gelu` (the
    tanh formula, of product + bias). Raises DtypeError, ShapeError, or DeviceError where the device is
    older than `min_capability` (for (9, 0): is not of it)."""

    name: str
    adds: str  # to the step before
    block_tile: tuple[int, int, int]
    warp_tile: tuple[int, int, int]
    fragment: tuple[int, int, int]
    threads: int
    stages: int
    dtypes: tuple[Any, ...]
    min_capability: tuple[int, int]
    multiple_n: int
    multiple_k: int
    epilogue: bool
    index: int

    def __call__(self, a: Any, b: Any, *, bias: Any = None, gelu: bool = False) -> Any:
        return _ops._gemm_step(a, b, self.index, bias, gelu)


def _read() -> Mapping[str, GemmStep]:
    steps = {}
    for index, row in enumerate(_cuda.gemm_steps()):
        name, adds, block, warp, fragment, threads, stages, capability, half, n, k, epilogue = row
        dtypes = (_C.bfloat16, _C.float16) if half else (_C.float32,)
        steps[name] = GemmStep(
            *(name, adds, block, warp, fragment, threads, stages, dtypes),
            min_capability=(capability // 10, capability % 10),
            multiple_n=n,
            multiple_k=k,
            epilogue=epilogue,
            index=index,
        )
    return MappingProxyType(steps)


#: The steps by name, in the order in which each adds to the one before.
gemm_ladder: Mapping[str, GemmStep] = _read()
