"""The GEMM ladder's kernels on the emulated device, compiled by itself: as they are
they must be right in every order of threads, and with a planted fault they must not."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from time_limits import seconds

ROOT = Path(__file__).resolve().parents[2]
EMULATOR, LADDER = ROOT / "tests/emulator", ROOT / "kernels/cuda/gemm"
COMPILER = shutil.which("g++")
CACHE = [found] if (found := shutil.which("ccache")) else []
RUNTIME = ("fibers", "memory", "streams", "cupti", "races", "runtime", "asynchronous", "test_gemm")
STEPS = ("naive", "coalesced", "shared_tile", "register_tile", "vectorised", "async_copy", "warp_tiles")
STEPS += ("wmma", "mma", "wgmma")
ORDERS = ("forward", "reverse", "shuffled")
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-fwrapv"]
FLAGS += [f"-I{path}" for path in (EMULATOR, ROOT, ROOT / "kernels/include")]
FLAGS += ["-DWARPTAPE_CUDA_EMULATED", "-DWARPTAPE_KERNEL_DEVICE=CUDA"]

pytestmark = pytest.mark.skipif(
    COMPILER is None or platform.machine() != "x86_64", reason="needs g++ and an x86-64 processor"
)

# Step, what is taken out or exchanged, for what, and the sizes that show it. On a GPU each would read what is
# not there yet, overwrite what is still read, or take a wrong place.
FAULTS = [
    ("shared_tile", "    __syncthreads();\n#pragma", "#pragma", "float32", (40, 40, 70)),
    ("shared_tile", "    __syncthreads();  // the tiles were read\n", "", "float32", (40, 40, 70)),
    ("async_copy", "    wait_copies<1>();\n", "", "float32", (40, 40, 70)),
    ("async_copy", "    __syncthreads();  // everybody's copies are there\n", "", "float32", (40, 40, 70)),
    (
        "async_copy",
        "    __syncthreads();  // the slice was read: the next turn writes there\n",
        "",
        "float32",
        (40, 40, 70),
    ),
    ("warp_tiles", "      wait_copies<1>();\n", "", "float32", (40, 40, 70)),
    ("wmma", "    __syncthreads();  // everybody's copies are there\n", "", "bfloat16", (40, 40, 104)),
    ("mma", "wait_copies<kStages - 2>", "wait_copies<kStages - 1>", "bfloat16", (40, 40, 200)),
    ("mma", "load_matrices_transposed(", "load_matrices(", "bfloat16", (40, 40, 40)),
    (
        "wgmma",
        "      wait_barrier(&barriers.full[turn.stage], turn.parity);\n",
        "",
        "bfloat16",
        (40, 40, 600),
    ),
    ("wgmma", "    wait_products<0>();\n", "", "bfloat16", (40, 40, 136)),
    ("wgmma", "      wait_products<1>();\n", "", "bfloat16", (40, 40, 600)),
    ("wgmma", "      fence_products();\n", "", "bfloat16", (40, 40, 136)),
    (
        "wgmma",
        "      wait_barrier(&barriers.empty[turn.stage], turn.parity ^ 1);\n",
        "",
        "bfloat16",
        (40, 40, 600),
    ),
]


def compile_one(source: Path, out: Path, kernel: bool) -> Path:
    language = ["-x", "c++", "-fdata-sections"] if kernel else []
    command = [*CACHE, str(COMPILER), *FLAGS, *language, "-c", str(source), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(300), check=False)
    assert done.returncode == 0, done.stderr
    return out


def link(objects: list[Path], out: Path) -> Path:
    command = [str(COMPILER), *map(str, objects), "-o", str(out), f"-Wl,-T,{EMULATOR / 'shared.ld'}", "-ldl"]
    subprocess.run([*command, "-pthread"], check=True, timeout=seconds(120))
    return out


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gemm")
    with ThreadPoolExecutor(2) as pool:
        runtime = {
            n: pool.submit(compile_one, EMULATOR / f"{n}.cpp", folder / f"{n}.o", False) for n in RUNTIME
        }
        steps = {n: pool.submit(compile_one, LADDER / f"{n}.cu", folder / f"{n}.cu.o", True) for n in STEPS}
        return {name: job.result() for name, job in (runtime | steps).items()}


@pytest.fixture(scope="module")
def program(objects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link(list(objects.values()), tmp_path_factory.mktemp("program") / "test_gemm")


def run(
    program: Path, step: str, dtype: str, sizes: tuple[int, ...], order: str, *more: str
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WARPTAPE_EMULAT")}
    env = clean | {"WARPTAPE_EMULATOR_ORDER": order, "WARPTAPE_EMULATOR_PROTECT": "1"}
    command = [str(program), str(STEPS.index(step)), dtype, *map(str, sizes), *more]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds(60), check=False)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_right_in_every_order(program: Path, step: str, order: str) -> None:
    half = step in ("wmma", "mma", "wgmma")
    for sizes in ((37, 40, 24), (130, 264, 136)):
        for dtype in ("bfloat16", "float16") if half else ("float32",):
            more = ("epilogue",) if step == "wgmma" and dtype == "float16" else ()
            done = run(program, step, dtype, sizes, order, *more)
            assert done.returncode == 0, (sizes, dtype, done.stdout, done.stderr)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f[0]}: {f[1].strip().splitlines()[0][:50]}")
def test_a_planted_fault_shows(
    objects: dict[str, Path], tmp_path: Path, fault: tuple[str, str, str, str, tuple[int, ...]]
) -> None:
    step, old, new, dtype, sizes = fault
    text = (LADDER / f"{step}.cu").read_text()
    assert text.count(old) == 1, old
    source = tmp_path / f"{step}.cu"
    source.write_text(text.replace(old, new))
    wrong = objects | {step: compile_one(source, tmp_path / f"{step}.cu.o", True)}
    program = link(list(wrong.values()), tmp_path / "wrong")
    results = [run(program, step, dtype, sizes, order) for order in ORDERS]
    assert any(done.returncode != 0 for done in results), [done.stdout for done in results]
