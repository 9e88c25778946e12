"""The CUDA plugin's device runtime (csrc/core/cuda) over the emulated CUDA (tests/emulator), compiled apart
from the package: streams, allocators, graphs and errors through the interface that the tensor layer uses."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from emulated_kernels import CACHE, COMPILER, EMULATOR, ROOT, RUNTIME, needs_compiler

TESTS = (
    "bad_index",
    "broken_captures",
    "devices",
    "events_and_streams",
    "exit_with_tensors",
    "faults",
    "frees_without_host_memory",
    "graphs",
    "host_memory",
    "kernel_launches",
    "out_of_memory",
    "recorded_streams",
    "stress",
    "threads",
)

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test program, beside a plugin of the runtime alone; the core's symbols are the program's."""
    out = tmp_path_factory.mktemp("cuda_runtime")
    apart = {"build_info.cpp", "checksum", "cuda"}
    core = [p for p in sorted((ROOT / "csrc/core").rglob("*.cpp")) if not apart & {p.name, p.parent.name}]
    core.append(ROOT / "kernels/runtime/per_thread.cpp")
    plugin = [
        *sorted((ROOT / "csrc/core/cuda").glob("*.cpp")),
        *(EMULATOR / f"{name}.cpp" for name in RUNTIME),
        EMULATOR / "test_probe.cpp",
    ]
    flags = ["-std=c++20", "-O0", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    flags += ["-DWARPTAPE_CUDA_EMULATED", "-DWARPTAPE_KERNEL_DEVICE=CUDA"]
    flags += ['-DWARPTAPE_CUDA_BUILT="for tests"']
    flags += [f"-I{p}" for p in (EMULATOR, ROOT / "kernels/include", ROOT / "csrc", ROOT)]

    def build(source: Path) -> str:
        target = out / f"{source.parent.name}_{source.stem}.o"
        command = [*CACHE, str(COMPILER), *flags, "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True, timeout=600)
        return str(target)

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        objects = list(pool.map(build, [*core, EMULATOR / "test_runtime.cpp"]))
        parts = list(pool.map(build, plugin))
    link = [str(COMPILER), "-pthread", "-ldl"]
    shared = ["-shared", "-o", str(out / "libwarptape_cuda.so")]
    subprocess.run([*link, *shared, *parts], check=True, timeout=600)
    subprocess.run([*link, "-rdynamic", "-o", str(out / "test_runtime"), *objects], check=True, timeout=600)
    return out / "test_runtime"


def run(program: Path, test: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("WARPTAPE_", "CUDA_"))}
    return subprocess.run(
        [str(program), str(program.parent), test],
        env=clean | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_all_are_run(program: Path) -> None:
    assert sorted(run(program, "list").stdout.split()) == sorted(
        [*TESTS, "dead_kernel", "failing_kernel", "uncached", "overrun", "unrecorded_stream"]
    )


@pytest.mark.parametrize("test", TESTS)
def test_runtime(program: Path, test: str) -> None:
    done = run(program, test, WARPTAPE_EMULATOR_PROTECT="1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", ["1", "2", "3"])
@pytest.mark.parametrize("test", ["stress", "recorded_streams", "host_memory", "graphs"])
def test_runtime_when_streams_overtake(program: Path, test: str, seed: str) -> None:
    done = run(program, test, WARPTAPE_EMULATOR_ORDER="shuffled", WARPTAPE_EMULATOR_SEED=seed)
    assert done.returncode == 0, done.stderr


def test_memory_that_another_stream_still_uses_is_found(program: Path) -> None:
    done = run(program, "unrecorded_stream")
    assert done.returncode < 0 and "8000 bytes at" in done.stderr and "'a copy' on stream" in done.stderr


@pytest.mark.parametrize("test", ["bad_index", "kernel_launches", "graphs", "faults", "exit_with_tensors"])
def test_runtime_with_blocking_launches(program: Path, test: str) -> None:
    done = run(program, test, WARPTAPE_LAUNCH_BLOCKING="1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["WARPTAPE_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_CUDA_MEMORY_CACHING"])
def test_without_caching(program: Path, name: str) -> None:
    done = run(program, "uncached", WARPTAPE_EMULATOR_PROTECT="1", **{name: "1"})
    assert done.returncode == 0, done.stderr


def test_an_access_behind_a_tensor_is_found_without_caching(program: Path) -> None:
    assert run(program, "overrun").returncode == 0
    exact = {"WARPTAPE_NO_CUDA_MEMORY_CACHING": "1", "WARPTAPE_EMULATOR_ALIGNMENT": "16"}
    done = run(program, "overrun", **exact)
    assert done.returncode < 0 and "kernel 'probe'" in done.stderr and "bad access" in done.stderr


@pytest.mark.parametrize("env", [{}, {"WARPTAPE_LAUNCH_BLOCKING": "1"}], ids=["late", "blocking"])
def test_a_dead_kernel_is_remembered(program: Path, env: dict[str, str]) -> None:
    done = run(program, "dead_kernel", WARPTAPE_EMULATED_FAULT="probe", **env)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("env", "says", "after"),
    [
        (
            {"WARPTAPE_EMULATED_FAULT": "probe"},
            ["illegal memory access", "compute-sanitizer", "WARPTAPE_LAUNCH_BLOCKING=1", "a new process"],
            "lost",
        ),
        (
            {"WARPTAPE_EMULATED_FAULT": "probe:misaligned"},
            ["misaligned address", "no multiple of them", "WARPTAPE_LAUNCH_BLOCKING=1", "a new process"],
            "lost",
        ),
        (
            {"WARPTAPE_EMULATED_FAULT": "probe:assert"},
            ["device-side assert", "has printed where", "a new process"],
            "lost",
        ),
        (
            {"WARPTAPE_EMULATED_FAULT": "probe:resources"},
            ["probe: CUDA error: too many resources", "launch smaller blocks"],
            "usable",
        ),
        (
            {"WARPTAPE_EMULATED_CAPABILITY": "75"},
            [
                "probe: CUDA error: no kernel image",
                "need compute capability 8.0",
                "of compute capability 7.5",
            ],
            "usable",
        ),
        (
            {"WARPTAPE_EMULATED_FAULT": "probe:image"},
            ["no code for cuda:0", "compute capability 9.0: build with -DWARPTAPE_CUDA_ARCHITECTURES=90"],
            "usable",
        ),
    ],
    ids=["illegal", "misaligned", "assert", "resources", "old_gpu", "other_gpu"],
)
def test_a_failing_kernel_says_what_to_do(
    program: Path, env: dict[str, str], says: list[str], after: str
) -> None:
    done = run(program, "failing_kernel", **env)
    assert done.returncode == 0, done.stderr
    text, state = done.stdout.splitlines()
    assert state == after
    for part in says:
        assert part in text


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({}, ["usable"]),
        ({"WARPTAPE_EMULATED_DEVICES": "0"}, ["no NVIDIA driver", "install"]),
        (
            {"WARPTAPE_EMULATED_DRIVER": "old"},
            ["supports CUDA 11.8", "needs CUDA 13.0", "install a newer driver"],
        ),
    ],
)
def test_says_why_it_cannot_be_used(program: Path, env: dict[str, str], says: list[str]) -> None:
    done = run(program, "why", **env)
    for part in says:
        assert part in done.stdout
