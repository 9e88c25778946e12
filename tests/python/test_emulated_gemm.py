"""The GEMM ladder's kernels on the emulated device, compiled by itself: as they are
they must be right in every order of threads, and with a planted fault they must not."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from emulated_kernels import EMULATOR, ORDERS, ROOT, RUNTIME, compile_one, link, needs_compiler, run_program

LADDER = ROOT / "kernels/cuda/gemm"
STEPS = ("naive", "coalesced", "shared_tile", "register_tile", "vectorised", "async_copy", "warp_tiles")
STEPS += ("wmma", "mma", "wgmma")

pytestmark = needs_compiler

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


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gemm")
    with ThreadPoolExecutor(2) as pool:
        runtime = {
            n: pool.submit(compile_one, EMULATOR / f"{n}.cpp", folder / f"{n}.o", False)
            for n in (*RUNTIME, "test_gemm")
        }
        steps = {n: pool.submit(compile_one, LADDER / f"{n}.cu", folder / f"{n}.cu.o", True) for n in STEPS}
        return {name: job.result() for name, job in (runtime | steps).items()}


@pytest.fixture(scope="module")
def program(objects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link(list(objects.values()), tmp_path_factory.mktemp("program") / "test_gemm")


def run(
    program: Path, step: str, dtype: str, sizes: tuple[int, ...], order: str, *more: str
) -> subprocess.CompletedProcess[str]:
    return run_program(program, STEPS.index(step), dtype, *sizes, *more, order=order)


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
