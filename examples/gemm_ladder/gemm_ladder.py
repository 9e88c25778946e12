"""The GEMM ladder: matrix products by one kernel a step, from the first tile to Hopper's tensor cores, to be
read, compared and measured (docs/explanation/gemm.md). warptape's own products do not go through it.

    python examples/gemm_ladder/gemm_ladder.py --arch 90a --out FOLDER    compiles it by nvcc; --check runs it
    python examples/gemm_ladder/gemm_ladder.py --out FOLDER               for the emulated device, by g++

Both need the source tree. In the folder lie an object a step then, and `libgemm_ladder.so`, which `load`
opens.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import warptape as wt

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EMULATOR = ROOT / "tests/emulator"
STEPS = ("naive", "coalesced", "shared_tile", "register_tile", "vectorised", "async_copy", "warp_tiles")
STEPS += ("wmma", "mma", "wgmma", "multicast")
#: All that has kernels: the steps, and the product that one of them calls.
SOURCES = (*(HERE / f"{name}.cu" for name in STEPS), ROOT / "kernels/cuda/gemm/warp_tiles.cu")
#: Of the emulated device.
RUNTIME = ("fibers", "launches", "lifetimes", "memory", "streams", "cupti", "races", "traffic", "conversions")
RUNTIME += ("runtime", "asynchronous", "clusters")
INCLUDES = [f"-I{ROOT}", f"-I{ROOT / 'kernels/include'}", "-std=c++20", "-DWARPTAPE_KERNEL_DEVICE=CUDA"]
DTYPES = (wt.float32, wt.float16, wt.bfloat16)


@dataclass(frozen=True)
class GemmStep:
    """One step. Tiles are (m, n, k): of a block, of a warp (with WGMMA: a warpgroup) within it, and of a
    thread or, with tensor cores, an instruction. `stages` slices along k lie in shared memory at once; n and
    k must be multiples of `multiple_n` and `multiple_k`.

    Called as `step(a, b)` with a [m, k] and b [k, n] of one of `dtypes` it gives [m, n] in their dtype; sums
    are kept in float32. Tensors on a GPU are multiplied where they lie, others are copied there and back. A
    step with `epilogue` also takes `bias` [n] and `gelu` (the tanh formula, of product + bias)."""

    name: str
    adds: str  # to the step before
    block_tile: tuple[int, int, int]
    warp_tile: tuple[int, int, int]
    fragment: tuple[int, int, int]
    threads: int
    stages: int
    dtypes: tuple[Any, ...]
    multiple_n: int
    multiple_k: int
    min_capability: tuple[int, int]  # (9, 0) means that one alone
    epilogue: bool
    index: int
    library: ctypes.CDLL

    def __call__(self, a: Any, b: Any, *, bias: Any = None, gelu: bool = False) -> Any:
        self._check(a, b, bias, gelu)
        given = [a, b] if bias is None else [a, b, bias]
        on_gpu = a.is_cuda and not self.library.gemm_ladder_is_emulated()
        # Dense, and at an address that accesses of 16 bytes take.
        ready = [x.detach().contiguous() if on_gpu else x.detach().cpu().contiguous() for x in given]
        ready = [x if x.data_ptr() % 16 == 0 else x.clone() for x in ready]
        out = wt.empty(a.shape[0], b.shape[1], dtype=a.dtype, device="cuda" if on_gpu else "cpu")
        if out.numel():
            error = self.library.gemm_ladder_run(
                self.index,
                DTYPES.index(a.dtype),
                *(ctypes.c_int64(n) for n in (*out.shape, a.shape[1])),
                *(ctypes.c_void_p(x.data_ptr()) for x in ready),
                *([] if bias is not None else [None]),
                gelu,
                ctypes.c_void_p(out.data_ptr()),
                a.device.index if on_gpu else -1,
                ctypes.c_void_p(wt.cuda.current_stream().cuda_stream) if on_gpu else None,
            )
            if error:
                raise RuntimeError(f"gemm_ladder: {error.decode()}")
        return out.to(a.device)

    def _check(self, a: Any, b: Any, bias: Any, gelu: bool) -> None:
        if a.dtype not in self.dtypes or b.dtype != a.dtype or (bias is not None and bias.dtype != a.dtype):
            raise TypeError(
                f"step '{self.name}' takes operands of one dtype of {self.dtypes}, "
                f"got {a.dtype} and {b.dtype}"
            )
        if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or a.shape[1] == 0:
            raise ValueError(
                f"step '{self.name}': expected [m, k] and [k, n] with k of at least 1, "
                f"got {list(a.shape)} and {list(b.shape)}"
            )
        n, k = b.shape[1], a.shape[1]
        if n % self.multiple_n or k % self.multiple_k:
            raise ValueError(
                f"step '{self.name}' copies rows by 16 bytes, so n must be a multiple of {self.multiple_n} "
                f"and k of {self.multiple_k}, got n {n} and k {k}; pad the operands or take another step"
            )
        if (bias is not None or gelu) and not self.epilogue:
            raise ValueError(
                f"step '{self.name}' has no epilogue; add the bias and apply GELU after the product"
            )
        if bias is not None and tuple(bias.shape) != (n,):
            raise ValueError(f"step '{self.name}': expected bias [{n}], got {list(bias.shape)}")


def load(path: str | Path) -> Mapping[str, GemmStep]:
    """The steps by name, in the order in which each adds to the one before."""
    library = ctypes.CDLL(str(path))
    library.gemm_ladder_table.restype = library.gemm_ladder_run.restype = ctypes.c_char_p
    library.gemm_ladder_is_emulated.restype = ctypes.c_bool
    tile, integer = ctypes.c_int64, ctypes.c_int
    matrices = [ctypes.c_void_p] * 3
    library.gemm_ladder_run.argtypes = [integer, integer, tile, tile, tile, *matrices]
    library.gemm_ladder_run.argtypes += [ctypes.c_bool, ctypes.c_void_p, integer, ctypes.c_void_p]
    steps = {}
    for index, line in enumerate(library.gemm_ladder_table().decode().splitlines()):
        name, adds, *rest = line.split("\t")
        tiles = [tuple(map(int, text.split(","))) for text in rest[:3]]
        threads, stages, half, n, k, capability, epilogue = map(int, rest[3:])
        dtypes = DTYPES[1:] if half else DTYPES[:1]
        least = (capability // 10, capability % 10)
        steps[name] = GemmStep(
            *(name, adds, *tiles, threads, stages, dtypes, n, k, least, bool(epilogue), index, library)
        )
    return MappingProxyType(steps)


def runs_on(step: GemmStep, capability: tuple[int, int]) -> bool:
    """WGMMA is Hopper's alone, the other steps run on anything from Ampere on."""
    least = step.min_capability
    return capability == least if least == (9, 0) else capability >= least


def run(command: Sequence[str | Path]) -> None:
    """Fails also where ptxas says that products of WGMMA wait for each other."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode or "are serialized" in done.stderr:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def build(folder: str | Path, arch: str | None = None) -> Path:
    """Compiles the ladder for an architecture such as "90a", or for the emulated device."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    cache = [found] if (found := shutil.which("ccache")) else []
    if arch:
        nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        target = f"-gencode=arch=compute_{arch},code=sm_{arch}"
        compiler = [*cache, nvcc, target, "-O3", "--expt-relaxed-constexpr", "--Werror=all-warnings"]
        compiler += ["-Xcompiler=-fPIC,-fvisibility=hidden"]
        linker, runtime = [nvcc, "-shared", target], []
    else:
        cxx = os.environ.get("CXX", "g++")
        compiler = [*cache, cxx, f"-I{EMULATOR}", "-O1", "-fPIC", "-fwrapv", "-fvisibility=hidden"]
        compiler += ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-DWARPTAPE_CUDA_EMULATED"]
        linker = [cxx, "-shared", "-Wl,-Bsymbolic", f"-Wl,-T,{EMULATOR / 'shared.ld'}", "-pthread"]
        runtime = [EMULATOR / f"{name}.cpp" for name in RUNTIME]

    def compiled(source: Path) -> Path:
        # Two files have one name: the step that calls the product, and the product.
        name = source.name if source.parent == HERE else f"{source.parent.name}_{source.name}"
        kernel = ["-x", "c++", "-fdata-sections"] if source.suffix == ".cu" and not arch else []
        run([*compiler, *INCLUDES, *kernel, "-c", source, "-o", folder / f"{name}.o"])
        return folder / f"{name}.o"

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, [HERE / "library.cu", *SOURCES, *runtime]))
    library = folder / "libgemm_ladder.so"
    run([*linker, *objects, "-o", library, *([] if arch else ["-ldl"])])
    return library


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", help="such as 90a; without it the kernels run emulated on the host")
    parser.add_argument("--out", type=Path, default=Path("build/gemm_ladder"), help="the folder")
    parser.add_argument("--check", action="store_true", help="multiply on this machine's GPU, too")
    options = parser.parse_args()
    library = build(options.out, options.arch)
    print(library)
    for step in load(library).values():
        print(f"{step.name:14} {step.adds}{error_of(step, options) if runs_here(step, options) else ''}")


def runs_here(step: GemmStep, options: argparse.Namespace) -> bool:
    if not options.arch:
        return True
    return options.check and runs_on(step, tuple(wt.cuda.get_device_capability()))


def error_of(step: GemmStep, options: argparse.Namespace) -> str:
    a, b = (wt.randn(136, 136).to(step.dtypes[-1]) for _ in range(2))
    if options.arch:
        a, b = a.cuda(), b.cuda()
    wanted = a.cpu().double().numpy() @ b.cpu().double().numpy()
    return f", largest error {np.abs(step(a, b).cpu().double().numpy() - wanted).max():.1e}"


if __name__ == "__main__":
    main()
