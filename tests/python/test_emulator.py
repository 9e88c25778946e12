"""The stand-in for the CUDA runtime (tests/emulator), compiled alone: it must run kernels and streams as CUDA
promises, and must show what relies on more than that."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import warptape
from emulated_kernels import (
    CACHE,
    COMPILER,
    EMULATOR,
    ORDERS,
    ROOT,
    RUNTIME,
    SHOW_ACCESSES,
    SHOW_CONVERSIONS,
    SHOW_UNSET,
    compile_one,
    link,
    needs_compiler,
    read_traffic,
    too_much,
)
from warptape.doctor import find_lapack

FILES = tuple(f"{name}.cpp" for name in RUNTIME)

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with test_emulator and test_findings."""
    folder = tmp_path_factory.mktemp("emulator")
    runtime = [compile_one(EMULATOR / name, folder / f"{name}.o", False) for name in FILES]
    for name in ("test_emulator", "test_findings"):
        shown = (*SHOW_ACCESSES, SHOW_CONVERSIONS, SHOW_UNSET)
        kernels = compile_one(EMULATOR / f"{name}.cpp", folder / f"{name}.cu.o", True, EMULATOR, *shown)
        link([*runtime, kernels], folder / name)
    return folder


@pytest.fixture
def program(folder: Path) -> Path:
    return folder / "test_emulator"


def run(program: Path, check: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WARPTAPE_EMULAT")}
    return subprocess.run(
        [str(program), check], env=clean | env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("check", ["block", "warp", "late", "events", "graph", "memory", "math", "shared"])
def test_behaves_as_cuda(program: Path, check: str) -> None:
    done = run(program, check)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("check", ["block", "warp", "events", "graph"])
def test_results_do_not_depend_on_the_order(program: Path, check: str, order: str) -> None:
    done = run(program, check, WARPTAPE_EMULATOR_ORDER=order, WARPTAPE_EMULATOR_PROTECT="1")
    assert done.returncode == 0, done.stderr


def test_a_missing_barrier_shows(program: Path) -> None:
    off = {"WARPTAPE_EMULATOR_RACES": "0"}
    results = {run(program, "race", WARPTAPE_EMULATOR_ORDER=order, **off).stdout for order in ORDERS}
    assert len(results) > 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        ("race", "no barrier came between"),
        ("exchange_in_warp", "no barrier came between"),
        ("write_after_read", "no barrier came between"),
        ("blocks_add", "nothing orders blocks"),
        ("last_block_sums", "nothing orders blocks"),
        ("neighbours_by_bytes", "no barrier came between"),
        ("all_write", "no barrier came between"),
        ("misaligned", "not aligned"),
    ],
)
def test_a_planted_race_is_found(program: Path, kernel: str, says: str, order: str) -> None:
    done = run(program, kernel, WARPTAPE_EMULATOR_ORDER=order)
    assert done.returncode < 0 and says in done.stderr, done.stderr
    if kernel != "race":
        done = run(program, kernel + ":right", WARPTAPE_EMULATOR_ORDER=order)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        ("diverged", "thread (1,0,0): __shfl_sync(0xffffffff) names lane 0, which has exited"),
        ("mixed", "lane 1 is in __shfl_sync(0xffffffff) while lane 0 waits in __any_sync"),
        ("partial", "names lane 8, which the block does not have"),
        ("stuck", "64 threads wait forever"),
        ("outside", "thread (0,0,0): bad access"),
    ],
)
def test_a_wrong_kernel_aborts(program: Path, kernel: str, says: str) -> None:
    done = run(program, kernel)
    assert done.returncode < 0
    assert f"kernel '{kernel}', block (0,0,0)" in done.stderr
    assert says in done.stderr


def find(folder: Path, kernel: str, which: int | str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WARPTAPE_EMULAT")}
    command = [str(folder / "test_findings"), kernel, str(which)]
    return subprocess.run(command, env=clean | env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("kernel", "moved", "touched"),
    [
        # Of the kernel with the fault and of the one without: sectors that move, and how many the requests
        # touch for each that their bytes need.
        ("rows_of_threads", (2 * 64 * 64 / 8, 2 * 64 * 64 / 8), (8, 1)),
        ("every_second", (2 * 64 * 32 / 8, 64 * 32 / 8), (2, 1)),
        ("four_passes", (4 * 2 * 2**18 / 8, 2 * 2**12 / 8), (1, 1)),
        ("eight_at_once", (2 * 64, 2 * 64 / 2), (2, 1)),
    ],
)
def test_traffic_is_counted(
    folder: Path, tmp_path: Path, kernel: str, moved: tuple[float, float], touched: tuple[int, int]
) -> None:
    for which, expected in enumerate(moved):
        launches = tmp_path / str(which)
        done = find(folder, kernel, which, WARPTAPE_EMULATOR_TRAFFIC=str(launches))
        assert done.returncode == 0, done.stderr
        (launch,) = read_traffic(launches)
        assert launch.name == kernel and launch.moved == expected, launch
        assert launch.sectors == touched[which] * launch.needed, launch
        assert bool(too_much(moved[1], [launch])) == (which == 0)
        assert launch.conflicts == 0


def test_bank_conflicts_are_counted(folder: Path, tmp_path: Path) -> None:
    conflicts = []
    for which in range(2):
        launches = tmp_path / str(which)
        assert find(folder, "columns", which, WARPTAPE_EMULATOR_TRAFFIC=str(launches)).returncode == 0
        (launch,) = read_traffic(launches)
        conflicts.append(launch.conflicts)
        assert launch.moved == 2 * 32 * 32 / 8
    assert conflicts == [32 * 31, 0]


@pytest.mark.parametrize(
    ("kernel", "found"),
    # Of 3e9, -3e9, 5.5 and NaN, those that the host converts otherwise than PTX's cvt.
    [
        ("float_to_int", "yes no no yes"),
        ("float_to_unsigned", "no yes no no"),
        ("float_to_long", "no no no no"),
        ("double_to_int", "yes no no no"),
        ("float_to_byte", "yes yes no yes"),
    ],
)
def test_a_conversion_that_a_gpu_does_otherwise_is_found(folder: Path, kernel: str, found: str) -> None:
    for which, wrong in enumerate(found.split()):
        done = find(folder, kernel, which)
        if wrong == "yes":
            assert done.returncode < 0 and "which a GPU does otherwise" in done.stderr, (which, done.stderr)
        else:
            assert done.returncode == 0, (which, done.stderr)


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("nothing", True),
        ("other's event", True),
        ("too late", True),
        ("capture", True),
        ("event", False),
        ("two events", False),
        ("host", False),
        ("host, by event", False),
        ("host, by query", False),
        ("capture, joined", False),
        ("same stream", False),
        ("other memory", False),
    ],
)
def test_memory_given_to_a_stream_that_does_not_wait_is_found(folder: Path, how: str, found: bool) -> None:
    done = find(folder, "give", how)
    assert (done.returncode < 0) == found, done.stderr
    assert ("while 'set' on stream" in done.stderr) == found


@pytest.mark.parametrize("where", ["heap", "stack"])
def test_a_pointer_to_the_hosts_memory_is_no_argument(program: Path, where: str) -> None:
    done = run(program, f"host {where}", WARPTAPE_EMULATOR_POINTERS="1")
    assert done.returncode < 0 and "follows: an argument of type Pi holds the address" in done.stderr


@pytest.mark.parametrize(("what", "found"), [("a part", True), ("all", False)])
def test_an_argument_has_no_bytes_that_nobody_set(folder: Path, what: str, found: bool) -> None:
    assert find(folder, "fill", what).returncode == 0
    done = find(folder, "fill", what, WARPTAPE_EMULATOR_POINTERS="1")
    assert (done.returncode < 0) == found, done.stderr
    assert ("set_lengths: an argument of type" in done.stderr) == found
    assert ("has bytes from 16 on that nobody set" in done.stderr) == found


def test_the_host_must_not_touch_device_memory(program: Path) -> None:
    assert run(program, "touch").returncode == 0
    assert run(program, "touch", WARPTAPE_EMULATOR_PROTECT="1").returncode < 0


def test_a_dead_kernel_stays_dead(program: Path) -> None:
    done = run(program, "fault", WARPTAPE_EMULATED_FAULT="doomed")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({}, "cudaSuccess 2 cudaSuccess"),
        ({"WARPTAPE_EMULATED_DEVICES": "1"}, "cudaSuccess 1 cudaSuccess"),
        ({"WARPTAPE_EMULATED_DEVICES": "0"}, "cudaErrorNoDevice 0 cudaErrorNoDevice"),
        ({"WARPTAPE_EMULATED_DRIVER": "old"}, "cudaErrorInsufficientDriver 0 cudaErrorInsufficientDriver"),
    ],
)
def test_drivers(program: Path, env: dict[str, str], says: str) -> None:
    assert run(program, "driver", **env).stdout.strip() == says


def test_the_stand_in_for_cublaslt(tmp_path: Path) -> None:
    """Products and their epilogues are right, and each planted mistake of a caller is refused."""
    include = ROOT / "kernels/include"
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{EMULATOR}", f"-I{include}"]
    objects = []
    for name in (*FILES, "cublaslt.cpp", "test_cublaslt.cpp"):
        objects.append(str(tmp_path / name) + ".o")
        command = [*CACHE, str(COMPILER), *flags, "-c", str(EMULATOR / name), "-o", objects[-1]]
        subprocess.run(command, check=True, timeout=600)
    out = tmp_path / "test_cublaslt"
    subprocess.run([str(COMPILER), *objects, "-o", str(out), "-ldl", "-pthread"], check=True, timeout=600)
    done = subprocess.run([str(out)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with test_cufft and test_cusolver, whose libraries compute by the CPU's kernels."""
    folder = tmp_path_factory.mktemp("stand_ins")
    package = Path(str(warptape.__file__)).parent
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{EMULATOR}", f"-I{ROOT}"]
    flags += [f"-I{ROOT / 'kernels/include'}"]

    def compile_part(name: str) -> str:
        out = str(folder / name) + ".o"
        subprocess.run(
            [*CACHE, str(COMPILER), *flags, "-c", str(EMULATOR / name), "-o", out], check=True, timeout=600
        )
        return out

    runtime = [compile_part(name) for name in FILES]
    libraries = [str(package / "libwarptape.so"), f"-Wl,-rpath,{package}", "-ldl", "-pthread"]
    for program, parts in (
        ("test_cufft", ["cufft.cpp"]),
        ("test_cusolver", ["cublas.cpp", "cusolver.cpp", "cusolver_ldl.cpp"]),
    ):
        own = [compile_part(name) for name in (*parts, f"{program}.cpp")]
        command = [str(COMPILER), *own, *runtime, "-o", str(folder / program), *libraries]
        subprocess.run(command, check=True, timeout=600)
    return folder


def run_stand_in(program: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WARPTAPE_EMULAT")}
    command = [str(program), *arguments]
    return subprocess.run(command, env=clean | env, capture_output=True, text=True, timeout=120, check=False)


def test_the_stand_in_for_cufft(stand_ins: Path) -> None:
    done = run_stand_in(stand_ins / "test_cufft", "none")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("stride", "dense lines only"),
        ("distance", "dense lines only"),
        ("small-work", "bytes of work memory"),
        ("no-work", "bytes of work memory"),
        ("own-memory", "a plan that is not expected"),
        ("no-stream", "without a stream"),
        ("stream-of-before", "without a stream"),
        ("misaligned", "is not aligned to 8"),
        ("beyond", "elements of memory of device 0"),
        ("host", "elements of memory of device 0"),
        ("in-place", "in place"),
        ("direction", "direction 0"),
        ("size", "the sizes are not those of a transform"),
        ("lines", "elements of memory of device 0"),
        ("rank", "a plan that is not expected"),
        ("compute", "the sizes are not those of a transform"),
        ("device", "a plan of another device"),
    ],
)
def test_the_stand_in_for_cufft_finds(stand_ins: Path, mistake: str, says: str) -> None:
    done = run_stand_in(stand_ins / "test_cufft", mistake)
    assert done.returncode < 0 and "cuFFT: " in done.stderr and says in done.stderr, done.stderr


def test_the_stand_in_for_cusolver(stand_ins: Path) -> None:
    """Factors and values are right, and each planted mistake of a caller is refused."""
    done = run_stand_in(stand_ins / "test_cusolver", str(find_lapack()))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("routine", "mistake", "which"),
    [
        ("getrfBatched", "host", 1),
        ("getrfBatched", "beyond", 2),
        ("getrsBatched", "host", 1),
        ("getrsBatched", "beyond", 2),
        ("geqrfBatched", "host", 1),
        ("geqrfBatched", "beyond", 2),
        ("geqrfBatched", "tau", 1),
        ("potrfBatched", "host", 0),
    ],
)
def test_a_matrix_of_a_batch_is_not_there(stand_ins: Path, routine: str, mistake: str, which: int) -> None:
    done = run_stand_in(stand_ins / "test_cusolver", str(find_lapack()), routine, mistake)
    assert done.returncode < 0 and re.search(rf"{routine}.*, matrix {which} ", done.stderr), done.stderr
