"""The GEMM ladder's kernels, and the grouped product's, on the emulated device, compiled by themselves: as
they are they must be right in every order of threads, and with a planted fault they must not. What Python
calls of the ladder is tested here, too, with the same objects; where GEMM_LADDER names a library for a GPU,
that one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as torch
from emulated_kernels import EMULATOR, ORDERS, ROOT, RUNTIME, compile_one, link, needs_compiler, run_program

LADDER, GEMM = ROOT / "examples/gemm_ladder", ROOT / "kernels/cuda/gemm"
sys.path.insert(0, str(LADDER))
import gemm_ladder  # noqa: E402
from gemm_ladder import STEPS, GemmStep  # noqa: E402

GROUPED = GEMM / "grouped_mm.cu"
# What a kernel includes that faults are planted in, each before what it includes itself.
HEADERS = ("gemm/grouped_wgmma", "gemm/grouped", "gemm/mma_tile", "gemm/wgmma_tile", "gemm/warp_tile")
HEADERS = tuple(f"kernels/cuda/{name}.cuh" for name in (*HEADERS, "gemm/half_tile", "common/fragments"))
HEADERS = ("examples/gemm_ladder/wgmma.cuh", *HEADERS)
EPILOGUES = ((), ("bias",), ("gelu",), ("bias", "gelu"))

pytestmark = needs_compiler

# Step, what is taken out or exchanged, for what, and the sizes and epilogue that show it. On a GPU each would
# read what is not there yet, overwrite what is still read, take a wrong place or leave out a part.
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
    (
        "mma",
        "load_matrices_transposed(words, s.values + places[i]",
        "load_matrices(words, s.values + places[i]",
        "bfloat16",
        (40, 40, 40),
    ),
    ("mma", "from += Rows * stride, rows -= Rows;", "rows -= Rows;", "bfloat16", (40, 40, 72)),
    ("mma", "from += Cols, cols -= Cols;", "cols -= Cols;", "bfloat16", (40, 40, 72)),
    ("mma", "from + i * kStep * stride", "from + i * stride", "bfloat16", (130, 40, 72)),
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
        "        wait_barrier(&barriers.empty[turn.stage], turn.parity ^ 1);\n",
        "        {\n        }\n",
        "bfloat16",
        (40, 40, 600),
    ),
    ("wgmma", "wait_boxes_read<1>();", "wait_boxes_read<2>();", "bfloat16", (40, 256, 136)),
    ("wgmma", "wait_boxes_read<0>();", "wait_boxes_read<1>();", "bfloat16", (40, 256, 136)),
    ("wgmma", "      __syncwarp();\n      round_part", "      round_part", "bfloat16", (40, 256, 136)),
    ("wgmma", "(piece ^ 2 * q)", "(piece + 2 * q)", "bfloat16", (40, 64, 136)),
    ("wgmma", "lane / 16 ^ lane % 8;", "lane / 16 ^ lane % 4;", "bfloat16", (40, 64, 136)),
    ("wgmma", "float(two[i % 2])", "float(two[0])", "bfloat16", (40, 40, 136, "bias")),
    (
        "wgmma",
        "(p.gelu ? wgmma_tiles<T, true, true>",
        "(false ? nullptr",
        "bfloat16",
        (40, 40, 8, "bias", "gelu"),
    ),
    ("wgmma", "x * reciprocal(1", "x * reciprocal(2", "bfloat16", (40, 40, 8, "gelu")),
    # Of the two blocks of a cluster, one fills a buffer that the other's consumers read, waits for too few of
    # them, begins before the other's barriers are there, or ends while the other still arrives.
    (
        "multicast",
        "        wait_cluster_barrier(&barriers.empty[turn.stage], turn.parity ^ 1);\n",
        "        {\n        }\n",
        "bfloat16",
        (40, 40, 600),
    ),
    ("multicast", "init(Block::kWarps * Cluster)", "init(Block::kWarps)", "bfloat16", (40, 40, 600)),
    ("multicast", "if (me.lane < Cluster)", "if (me.lane < 1)", "bfloat16", (40, 40, 600)),
    ("multicast", "  else\n    cluster_sync();\n", "", "bfloat16", (40, 40, 600)),
    ("multicast", "  if constexpr (Cluster > 1) cluster_sync();", "", "bfloat16", (40, 40, 600)),
    ("multicast", "(1u << Cluster) - 1", "1u << cluster_rank()", "bfloat16", (40, 40, 600)),
    ("multicast", "int(cluster_rank())) * Block::kM", "0) * Block::kM", "bfloat16", (140, 40, 8)),
]

# What is exchanged in the grouped product or its tile, for what, and the case that shows it: dtype, form,
# sizes and ends. Rows of another group or none, another group's matrix, sums over another's k, operands the
# wrong way round.
GROUPED_FAULTS = [
    ("(tile - (upto - tiles)) * Rows", "(tile - upto + 1) * Rows", "float64 rows 150 24 40 70 70 150"),
    ("(tile - (upto - tiles)) * Rows", "tile * Rows", "float32 rows 150 24 40 70 70 150"),
    ("if (lane >= step) upto += other;", "upto += other;", "float64 rows 150 24 40 70 70 150"),
    ("tile -= __shfl_sync(kAllLanes, upto, kWarp - 1);", "", f"float64 rows 80 8 8 {'2 ' * 39} 40"),
    ("w.m = found.last, ", "", "bfloat16 mma_rows 150 24 40 70 70 150"),
    (
        "w.b += found.group * p.n * p.k;",
        "w.b += (found.group + 1) % p.groups * p.n * p.k;",
        "bfloat16 mma_rows 150 24 40 70 150",
    ),
    ("  else\n    w.k = 0;\n", "", "bfloat16 mma_rows 150 24 40 70 100"),
    ("w.k = span.last - span.first;", "w.k = p.k - span.first;", "bfloat16 mma_along_k 150 24 40 70 70 150"),
    ("w.b += span.first * p.n, ", "", "bfloat16 mma_along_k 150 24 40 70 70 150"),
    ("outer = IsA ? odd : late", "outer = IsA ? late : odd", "bfloat16 mma_along_k 40 40 40 40"),
    (
        "const int outer = IsA ? odd : late, deep = IsA ? late : odd;",
        "const int outer = odd, deep = late;",
        "float16 mma_transposed 40 40 40 40",
    ),
    ("(piece ^ (AlongK ? r / 2 % 4 : r % 8))", "(piece ^ (r % 8))", "float16 mma_transposed 40 40 40 40"),
    # by WGMMA
    ("if (count >= WgmmaBlock::kK) return;", "return;", "bfloat16 along_k 150 24 40 70 70 150"),
    ("rows >= WgmmaBlock::kWarpRows", "rows > 0", "bfloat16 rows 150 24 40 70 150"),
    ("r < rows; r += kWarp / 8", "r < max(rows, 16); r += kWarp / 8", "bfloat16 rows 150 24 40 70 150"),
    ("(piece ^ r % 8) * 16", "piece * 16", "bfloat16 rows 150 24 40 70 150"),
    ("if (col + piece * kPiece >= n) return;", "", "bfloat16 rows 150 24 40 70 150"),
    ("rows.last, 0, in_none ? 0 :", "rows.last, 0, ", "bfloat16 rows 150 24 40 70 100"),
    ("in_none ? 0 : int(rows.group), rows.row", "0, rows.row", "float16 transposed 150 24 40 70 150"),
    ("span.first, span.last - span.first};", "0, span.last};", "bfloat16 along_k 150 24 40 70 150"),
    ("col, row, AAlongK ? 0 : task.group);", "col, row, 0);", "bfloat16 along_k 150 24 40 70 150"),
    ("AAlongK ? q * 2 : q * kRowBytes, in_b", "q * 2, in_b", "bfloat16 along_k 40 24 40 40"),
    ("in_b = BAlongK ? q * 2 : q * kRowBytes", "in_b = q * kRowBytes", "bfloat16 transposed 40 24 40 40"),
    ("tile - group * down_ * across_, down_", "tile, down_", "bfloat16 along_k 150 24 40 70 150"),
]
GROUPED_CASES = {
    "ragged": (150, (1, 1, 70, 133)),
    "all rows in one group": (150, (0, 0, 150, 150)),
    "no rows": (3, (0, 0, 0)),
    "many groups": (300, tuple(300 * i // 70 for i in range(1, 71))),
    "whole tiles": (256, (128, 256)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the ladder's library and its objects."""
    return gemm_ladder.build(tmp_path_factory.mktemp("gemm")).parent


@pytest.fixture(scope="module")
def objects(folder: Path) -> dict[str, Path]:
    """All but the library's own, by the names of their files."""
    found = {path.name.partition(".")[0]: path for path in folder.glob("*.o")}
    del found["library"]
    return found


def with_tile(source: Path) -> str:
    """The text of a kernel, with that of the ladder's tile and of the copies that it includes in place."""
    text = source.read_text()
    for header in HEADERS:
        line = f'#include "{header}"\n'
        own = (ROOT / header).read_text().replace("#pragma once\n", "")
        text = text.replace(line, own, 1).replace(line, "")  # once, though several include it
    return text


def planted(source: Path, old: str, new: str, to: Path) -> Path:
    text = with_tile(source)
    assert text.count(old) == 1, old
    to.write_text(text.replace(old, new))
    return to


@pytest.fixture(scope="module")
def program(objects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    main = compile_one(EMULATOR / "test_gemm.cpp", folder / "main.o", False)
    return link([main, *objects.values()], folder / "test_gemm")


def grouped_program(source: Path, objects: dict[str, Path], folder: Path) -> Path:
    named = f'-DWARPTAPE_TEST_SOURCE="{source}"'
    main = compile_one(EMULATOR / "test_grouped.cpp", folder / "test_grouped.cu.o", True, EMULATOR, named)
    return link([main, *(objects[f"emulator_{name}"] for name in RUNTIME)], folder / "test_grouped")


@pytest.fixture(scope="module")
def grouped(objects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grouped_program(GROUPED, objects, tmp_path_factory.mktemp("grouped"))


def run(
    program: Path, step: str, dtype: str, sizes: tuple[int | str, ...], order: str, *more: str
) -> subprocess.CompletedProcess[str]:
    return run_program(program, STEPS.index(step), dtype, *sizes, *more, order=order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_right_in_every_order(program: Path, step: str, order: str) -> None:
    half = step in ("wmma", "mma", "wgmma", "multicast")
    for sizes in ((37, 40, 24), (130, 264, 136), *[(300, 520, 328)] * (step == "multicast")):
        for dtype in ("bfloat16", "float16") if half else ("float32",):
            for more in EPILOGUES if step == "wgmma" else ((),):
                done = run(program, step, dtype, sizes, order, *more)
                assert done.returncode == 0, (sizes, dtype, more, done.stdout, done.stderr)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f[0]}: {f[1].strip().splitlines()[0][:50]}")
def test_a_planted_fault_shows(
    objects: dict[str, Path], tmp_path: Path, fault: tuple[str, str, str, str, tuple[int | str, ...]]
) -> None:
    step, old, new, dtype, sizes = fault
    kernel = GEMM / "warp_tiles.cu" if step == "warp_tiles" else LADDER / f"{step}.cu"
    source = planted(kernel, old, new, tmp_path / f"{step}.cu")
    wrong = objects | {
        "gemm_warp_tiles" if step == "warp_tiles" else step: compile_one(
            source, tmp_path / f"{step}.cu.o", True
        ),
        "main": compile_one(EMULATOR / "test_gemm.cpp", tmp_path / "main.o", False),
    }
    program = link(list(wrong.values()), tmp_path / "wrong")
    results = [run(program, step, dtype, sizes, order) for order in ORDERS]
    assert any(done.returncode != 0 for done in results), [done.stdout for done in results]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", GROUPED_CASES)
@pytest.mark.parametrize(
    "form", ["rows", "transposed", "along_k", "mma_rows", "mma_transposed", "mma_along_k"]
)
def test_groups_are_right_in_every_order(grouped: Path, form: str, case: str, order: str) -> None:
    cut, ends = GROUPED_CASES[case]
    for dtype, other, n in (
        ("bfloat16", 136, 40),
        ("float16", 24, 136),
        ("float16", 23, 41),  # by no tensor core: rows are not of 16 bytes
        ("float32", 36, 68),
        ("float32", 21, 35),
        ("float64", 21, 35),
    )[: 2 if form.startswith("mma_") else None]:
        done = run_program(grouped, dtype, form, cut, other, n, *ends, order=order)
        assert done.returncode == 0, (dtype, other, n, done.stdout, done.stderr)


@pytest.mark.parametrize("form", ["rows", "transposed", "along_k"])
def test_groups_go_back_to_mma(grouped: Path, form: str, tmp_path: Path) -> None:
    threads = {}
    for kernels in ("", "wgmma", "mma"):
        launches = tmp_path / f"launches{kernels}"
        env = {"WARPTAPE_GROUPED_MM": kernels, "WARPTAPE_EMULATOR_LAUNCHES": str(launches)}
        done = run_program(grouped, "bfloat16", form, 40, 136, 40, 7, 30, 40, order=ORDERS[0], **env)
        assert done.returncode == 0, (done.stdout, done.stderr)
        threads[kernels] = [int(line.split()[1]) for line in launches.read_text().splitlines()]
    assert threads == {"": [384], "wgmma": [384], "mma": [256]}


@pytest.mark.parametrize("form", ["rows", "along_k"])
@pytest.mark.parametrize("ends", [(3, 2, 9), (3, 10, 10), (-1, 4, 9)], ids=str)
def test_bad_ends_are_reported(grouped: Path, form: str, ends: tuple[int, ...]) -> None:
    for dtype in ("bfloat16", "float32", "float64"):
        done = run_program(grouped, dtype, form, 9, 8, 16, *ends, order="shuffled")
        assert done.returncode == 3, (dtype, done.stdout, done.stderr)


@pytest.mark.parametrize("fault", GROUPED_FAULTS, ids=lambda f: f"{f[0].strip()[:40]} -> {f[1][:24]}")
def test_a_planted_fault_in_groups_shows(
    objects: dict[str, Path], tmp_path: Path, fault: tuple[str, str, str]
) -> None:
    old, new, case = fault
    source = planted(GROUPED, old, new, tmp_path / "grouped_mm.cu")
    program = grouped_program(source, objects, tmp_path)
    results = [run_program(program, *case.split(), order=order) for order in ORDERS]
    assert any(done.returncode != 0 for done in results), [done.stdout for done in results]


# ---- the ladder as Python calls it ----
TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.fixture(scope="module")
def ladder(request: pytest.FixtureRequest) -> Mapping[str, GemmStep]:
    path = os.environ.get("GEMM_LADDER")
    return gemm_ladder.load(path or request.getfixturevalue("folder") / "libgemm_ladder.so")


def values(*shape: int, dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.standard_normal(shape).astype(np.float32)).to(dtype)
    return x.cuda() if os.environ.get("GEMM_LADDER") else x


def exact(x: Any) -> np.ndarray:
    return x.cpu().double().numpy()


def close(got: Any, expected: np.ndarray, dtype: Any) -> None:
    assert got.dtype == dtype and got.shape == expected.shape
    assert (np.abs(exact(got) - expected) / np.maximum(1, np.abs(expected))).max() <= TOLERANCES[dtype]


def test_the_table_describes_the_kernels(ladder: Mapping[str, GemmStep]) -> None:
    assert tuple(ladder) == STEPS and [step.index for step in ladder.values()] == list(range(11))
    for step in ladder.values():
        covered = np.array(step.block_tile) // np.array(step.warp_tile)
        warps = step.threads // 32 if step.name not in ("wgmma", "multicast") else 2  # consumer warpgroups
        assert covered[0] * covered[1] == warps, step.name
        assert all(t % f == 0 for t, f in zip(step.warp_tile, step.fragment, strict=True)), step.name


@pytest.mark.parametrize("name", STEPS)
def test_tensors_are_multiplied(ladder: Mapping[str, GemmStep], name: str) -> None:
    step = ladder[name]
    for dtype in step.dtypes:
        a, b = values(33, 24, dtype=dtype), values(24, 40, dtype=dtype, seed=1)
        close(step(a, b), exact(a) @ exact(b), dtype)
    assert step(a[:0], b).shape == (0, 40)


def test_views_are_copied_where_the_kernels_need_it(ladder: Mapping[str, GemmStep]) -> None:
    a, b = values(33, 41, dtype=torch.float32), values(36, 40, dtype=torch.float32, seed=1)
    close(ladder["vectorised"](a[:, 1:], b.t()), exact(a[:, 1:]) @ exact(b.t()), torch.float32)
    shifted = values(1 + 16 * 8, dtype=torch.bfloat16)[1:].view(16, 8)  # at an odd address
    close(ladder["mma"](shifted, shifted[:8]), exact(shifted) @ exact(shifted[:8]), torch.bfloat16)


def test_the_epilogue_adds_a_bias_and_applies_gelu(ladder: Mapping[str, GemmStep]) -> None:
    a, b = values(70, 64, dtype=torch.bfloat16), values(64, 40, dtype=torch.bfloat16, seed=1)
    bias = values(40, dtype=torch.bfloat16, seed=2)
    x = exact(a) @ exact(b) + exact(bias)
    x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    close(ladder["wgmma"](a, b, bias=bias, gelu=True), x, torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "change", "error", "says"),
    [
        ("mma", {"n": 12}, ValueError, "n must be a multiple of 8 and k of 8, got n 12 and k 16"),
        ("vectorised", {"k": 6}, ValueError, "k of 4"),
        ("naive", {"k": 0}, ValueError, "k of at least 1"),
        ("naive", {"b": (5, 4)}, ValueError, r"expected \[m, k\] and \[k, n\]"),
        ("wmma", {"dtype": torch.float32}, TypeError, "takes operands of one dtype"),
        ("naive", {"dtype": torch.float64}, TypeError, "float32"),
        ("mma", {"gelu": True}, ValueError, "has no epilogue"),
        ("wgmma", {"bias": 8}, ValueError, r"expected bias \[16\]"),
    ],
)
def test_wrong_input_is_refused(
    ladder: Mapping[str, GemmStep], name: str, change: dict[str, Any], error: type[Exception], says: str
) -> None:
    step = ladder[name]
    dtype = change.get("dtype", step.dtypes[0])
    k, n = change.get("k", 16), change.get("n", 16)
    a, b = values(8, k, dtype=dtype), values(*change.get("b", (k, n)), dtype=dtype)
    bias = values(change["bias"], dtype=dtype) if "bias" in change else None
    with pytest.raises(error, match=says):
        step(a, b, bias=bias, gelu=change.get("gelu", False))
