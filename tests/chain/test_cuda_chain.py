"""Chains on CUDA. On the emulated device, whose stand-in for NVRTC is the host's compiler, they give what the
ops' kernels give one at a time, to the bit; NVRTC itself, where it is installed, compiles the same sources.
It is looked for as the library does, and needs no GPU."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import warptape as torch
from kernel_chains import LIBRARY, MAX_INPUTS, ROOT, Chain, Driver, Value, memory_dtype

from .test_chain import FORMULAS, MIXED, SLOW, check, make, mixed, random_chain, result_of, simple

EMULATED = torch.cuda.is_available() and "emulated" in torch.cuda.get_device_name(0).lower()
pytestmark = pytest.mark.skipif(
    not EMULATED or not shutil.which("c++"), reason="needs the emulated device and a compiler"
)


@pytest.fixture(autouse=True)
def _as_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains are compared with the host, whose conversions of what an integer cannot hold are not PTX's, and
    their kernels, as those of the ops, are given NumPy's memory."""
    monkeypatch.setenv("WARPTAPE_EMULATOR_CONVERSIONS", "0")
    monkeypatch.delenv("WARPTAPE_EMULATOR_POINTERS", raising=False)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of compiled kernels."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("kernels")
        patch.setenv("WARPTAPE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Driver]:
    torch.zeros(1, device="cuda")
    driver = Driver(tmp_path_factory.mktemp("chain"))
    driver.library.set_device(1)
    yield driver
    driver.library.set_device(0)


def apart(chain: Chain) -> Chain:
    """The same with an input for each use of a number, as a program's chain has it."""
    inputs = list(chain.inputs)
    first, used, places = len(inputs), set(), []
    for _, _, taken, _ in chain.steps:
        place = []
        for v in taken:
            if v < first and inputs[v].array.ndim == 0 and v in used:
                inputs.append(inputs[v])
                v = -len(inputs)
            used.add(v)
            place.append(v)
        places.append(place)
    more = len(inputs) - first

    def moved(v: int) -> int:
        return -v - 1 if v < 0 else v if v < first else v + more

    steps = [(s, c, tuple(map(moved, p)), r) for (s, c, _, r), p in zip(chain.steps, places, strict=True)]
    numbers = {v for v in range(first) if inputs[v].array.ndim == 0}
    return Chain(inputs, steps, [moved(v) for v in chain.outputs if v not in numbers])


def for_device(chain: Chain) -> Chain:
    """The same without what needs the device's memory where ops run one at a time: copies to the same dtype,
    by its copy engine, and results of numbers alone."""
    numbers = [k for k, v in enumerate(chain.inputs) if v.array.ndim == 0]
    for k in numbers[max(0, MAX_INPUTS - len(chain.inputs)) // 2 :]:
        chain.inputs[k] = Value(np.full(chain.shape[-1:], chain.inputs[k].array), chain.inputs[k].dtype)
    for k, (slot, compute, taken, result) in enumerate(chain.steps):
        if all(v < len(chain.inputs) and chain.inputs[v].array.ndim == 0 for v in taken):
            taken = (0, *taken[1:])
        if slot == "copy" and chain.dtype(taken[0]) == result:
            result = "float32" if result == "float64" else "float64"
        chain.steps[k] = (slot, compute, taken, result)
    return apart(chain)


def formula_chains() -> Iterator[Chain]:
    """Every formula on values in memory and on one number, some in a chain."""
    rng = np.random.default_rng(1)
    for compute in ("float32", "float64", "int64"):
        own = [(slot, count) for slot, count, c in FORMULAS if c == compute]
        for at in range(0, len(own), 6):
            inputs = [Value(make(rng, (83,), compute), compute) for _ in range(6)]
            inputs.append(Value(make(rng, (83,), "bool"), "bool"))
            inputs += [Value(make(rng, (), "float64", False), "float64") for _ in range(6)]
            chain = Chain(inputs)
            for k, (slot, count) in enumerate(own[at : at + 6]):
                taken = ((6,) if slot == "where" else (0,)) + tuple(range(1, count))
                result = result_of(slot, compute)
                chain.steps.append((slot, compute, taken, result))
                chain.steps.append((slot, compute, (*taken[:-1], 7 + k) if count > 1 else taken, result))
                chain.outputs += [len(inputs) + 2 * k, len(inputs) + 2 * k + 1]
            yield chain


def test_every_formula(driver: Driver) -> None:
    chains = list(formula_chains())
    assert sum(len(c.steps) for c in chains) == 2 * len(FORMULAS) > 500
    for chain in chains:
        check(driver, chain)


@pytest.mark.parametrize("n", [1, 3, 4, 8, 255, 512, 2048, 2049, 40_000])
def test_sizes(driver: Driver, n: int) -> None:
    """One kernel for all: groups, what is left of them, blocks that are not full."""
    check(driver, apart(mixed(n)))
    check(driver, apart(simple((n,), [7, 3])))


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize("row", [12, 13])
def test_alignment_and_rows(driver: Driver, start: int, row: int) -> None:
    rng = np.random.default_rng(2)
    base = make(rng, (5 * row + 8,), "float32")[start : start + 5 * row].reshape(5, row)
    bias, column = make(rng, (row,), "float32"), make(rng, (5, 1), "bfloat16")
    inputs = [Value(base, "float32"), Value(bias, "float32"), Value(column, "bfloat16")]
    steps = [("add", "float32", (0, 1), "float32"), ("mul", "float32", (3, 2), "bfloat16")]
    check(driver, Chain(inputs, steps, [3, 4]))


@pytest.mark.parametrize("outputs,into", [([7], [0]), ([3, 7], [1, 0]), ([0, 4], [None, 0])])
def test_in_place(driver: Driver, outputs: list[int], into: list[int | None]) -> None:
    chain = apart(simple((300,), outputs))
    memory = [Value(np.zeros(300, np.float32), "float32") if i is None else chain.inputs[i] for i in into]
    check(driver, chain, memory)


@pytest.mark.parametrize("seed", [*range(24), -1])
def test_random_chains(driver: Driver, seed: int) -> None:
    chain = for_device(random_chain(abs(seed), largest=seed < 0))
    assert len(chain.inputs) <= MAX_INPUTS
    outputs = [Value(np.zeros(chain.shape, memory_dtype(d)), d) for d in map(chain.dtype, chain.outputs)]
    check(driver, chain, outputs)


def test_a_planted_difference_is_found(driver: Driver) -> None:
    """A step that is not rounded to its dtype, in the text of the kernels' own header."""
    assert {s[3] for s in MIXED} >= {"bfloat16", "float16"} and SLOW
    chain = apart(mixed(100))
    run = driver.run

    def wrong(c: Chain, *args: object, **kwargs: object) -> object:
        steps = [(*s[:3], "float32") if s[3] == "bfloat16" else s for s in c.steps]
        return run(Chain(c.inputs, steps, c.outputs), *args, **kwargs)  # type: ignore[arg-type]

    driver.run = wrong  # type: ignore[method-assign]
    try:
        with pytest.raises(AssertionError, match="differs at"):
            check(
                driver,
                chain,
                [Value(np.zeros(100, memory_dtype(d)), d) for d in map(chain.dtype, chain.outputs)],
            )
    finally:
        driver.run = run  # type: ignore[method-assign]


# ---- the cache ----


def sources(cache: Path) -> list[str]:
    """Of the kernels in it."""
    found = []
    for path in sorted(cache.glob("*.cubin")):
        content = path.read_bytes()
        head = len(b"warptape kernel\n")
        size = struct.unpack_from("<Q", content, head)[0]
        found.append(content[head + 24 : head + 24 + size].decode().split("\n", 1)[1])
    return found


RUN = """
import warptape as torch
f = torch.compile(lambda x: (x * 3 + 1).relu())
x = torch.arange(-40., 40., device="cuda")
f(x)
torch._C._wait_for_kernels(False)
assert torch.equal(f(x), (x * 3 + 1).relu())
print(f.explain().problems)
"""


def run(folder: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RUN], env=os.environ | {"WARPTAPE_CACHE": str(folder)} | env,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_cache_files_are_used_and_broken_ones_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "cache"
    assert run(folder) == "[]"
    (path,) = folder.iterdir()
    good = path.read_bytes()
    no_compiler = {"PATH": str(tmp_path)}
    assert run(folder, **no_compiler) == "[]"
    for broken in (b"", good[:-1], good[: len(good) // 2], good[:-9] + b"x" + good[-8:], b"x" * 4000):
        path.write_bytes(broken)
        assert "NVRTC cannot compile" in run(folder, **no_compiler)
        assert run(folder) == "[]" and path.read_bytes() == good
    assert [p.name for p in folder.iterdir()] == [path.name]
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file" / "no folder") == "[]"


def test_where_kernels_cannot_be_compiled_it_says_why(tmp_path: Path) -> None:
    assert "NVRTC was not found" in run(tmp_path, WARPTAPE_EMULATED_NVRTC="off")
    # Sums and products have the same bits by any compiler, exp has not.
    assert run(tmp_path, WARPTAPE_EMULATED_NVRTC="13.5") == "[]"
    with_exp = subprocess.run(
        [sys.executable, "-c", RUN.replace(".relu()", ".exp()")],
        env=os.environ | {"WARPTAPE_CACHE": str(tmp_path), "WARPTAPE_EMULATED_NVRTC": "13.5"},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "NVRTC is of CUDA 13.5 and the ops' own kernels of 13.0" in with_exp.stdout


# ---- NVRTC itself ----


def nvrtc() -> ctypes.CDLL | None:
    """From WARPTAPE_CUDA_LIBRARIES, the wheel nvidia-cuda-nvrtc or the toolkit."""
    folders = [Path(f) for f in os.environ.get("WARPTAPE_CUDA_LIBRARIES", "").split(":") if f]
    folders += [Path(p) / "nvidia" / part / "lib" for p in sys.path for part in ("cu13", "cuda_nvrtc")]
    for folder in [*folders, Path("/usr/local/cuda/lib64")]:
        if (folder / "libnvrtc.so.13").exists():
            for part in folder.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(part))
            return ctypes.CDLL(str(folder / "libnvrtc.so.13"))
    return None


def headers() -> dict[str, str]:
    text = (ROOT / "cmake" / "Cuda.cmake").read_text()
    block = re.search(r"foreach\(file (kernels/include.*?)\)", text, re.DOTALL)
    assert block
    named = {f.removeprefix("kernels/include/"): (ROOT / f).read_text() for f in block[1].split()}
    standard = ("cstddef", "cstdint", "cstring", "type_traits", "math.h")
    return named | dict.fromkeys(standard, '#include "kernels/cuda/common/standard.h"\n')


def compile_by(library: ctypes.CDLL, source: str) -> tuple[int, str]:
    """Error number, 0 for none, and messages."""
    named, unit, size = headers(), ctypes.c_void_p(), ctypes.c_size_t()
    strings = ctypes.c_char_p * len(named)
    texts, names = strings(*[t.encode() for t in named.values()]), strings(*[n.encode() for n in named])
    library.nvrtcCreateProgram(ctypes.byref(unit), source.encode(), b"chain.cu", len(named), texts, names)
    text = (ROOT / "kernels/cuda/fused/chain_compile.cpp").read_text()
    flags = re.findall(r'"(-[^"]+)"', text[text.index("kFlags[] =") : text.index("kStandardNames")])
    given = [f.encode() for f in (*flags, "--gpu-architecture=sm_90")]
    error = library.nvrtcCompileProgram(unit, len(given), (ctypes.c_char_p * len(given))(*given))
    library.nvrtcGetProgramLogSize(unit, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(unit, log)
    library.nvrtcDestroyProgram(ctypes.byref(unit))
    return error, log.value.decode()


def test_nvrtc_compiles_every_formula(driver: Driver, cache: Path) -> None:
    """For sm_90, without a message. What it makes has not run on a GPU."""
    library = nvrtc()
    if not library:
        pytest.skip("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
    chains = [*formula_chains(), apart(mixed(100)), for_device(random_chain(3))]
    for chain in chains:
        check(driver, chain)
    found = sources(cache)
    text = "".join(found)
    names = {"Where", "GeluTanhBackward", "Igamma", "BesselI0", "IsFinite", "FloorDivide"}
    assert len(found) >= len(chains) and all(f"step<{name}," in text for name in names)
    for source in found:
        assert compile_by(library, source) == (0, "")
    error, log = compile_by(library, found[0].replace("step<", "stop<"))
    assert error and "stop" in log
    assert LIBRARY.exists()


def test_nvrtc_compiles_rows(cache: Path) -> None:
    """The same for chains with a norm, forward and backward: tests/graph/test_cuda_rows.py."""
    library = nvrtc()
    if not library:
        pytest.skip("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")

    def step(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [x.detach().requires_grad_(), w.detach().requires_grad_()]
        z = leaves[0] * 2
        return torch.autograd.grad([torch.nn.functional.layer_norm(z, (16,), leaves[1]), z], leaves, [y, y])

    for dtype in (torch.float32, torch.bfloat16):
        compiled = torch.compile(step)
        compiled.region.adaptive = False
        compiled(*(torch.ones(*shape, dtype=dtype, device="cuda") for shape in ((4, 16), (4, 16), (16,))))
        torch._C._wait_for_kernels(False)
    found = [s for s in sources(cache) if "chain_rows.cuh" in s]
    assert len(found) == 4 and any("run_norm_backward_chain" in s for s in found)
    for source in found:
        assert compile_by(library, source) == (0, "")
