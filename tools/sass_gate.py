"""A gate on the machine code of the hot CUDA kernels, which needs no GPU.

    python tools/sass_gate.py build/csrc/CMakeFiles/warptape_cuda.dir    objects of a build
    python tools/sass_gate.py softmax.cubin gemm_ladder/wgmma.cu.o               some files
    python tools/sass_gate.py --compile --arch 90a                               compiles the hot sources
    python tools/sass_gate.py --rows build                                       chains with norms, by NVRTC

Reads the code by cuobjdump (of the toolkit or the wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm) and
prints a table: kernel, architecture, registers, instructions on local memory, widest load and store of global
memory, tensor-core and asynchronous instructions. Kernels with WGMMA are followed along every way besides:
registers under way, fences, budgets of setmaxnreg, descriptors (tools/sass_flow.py). `--rows` takes a build
folder, compiles a few chains with a norm for sm_90 as `torch.compile` does (tests/chain/row_kernels.cpp) and
holds them to their rule, too. Fails where a kernel breaks a rule of RULES, or a rule's kernel is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("80", "90a")
#: For which NVRTC compiles, and what the rules of those kernels name as their source.
NVRTC_ARCHITECTURE, ROWS = "90", "fused/chain_rows.cuh"
#: Address, predicate, name and operands in a line of cuobjdump -sass.
INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)([^;]*)")
#: What the table names of the many instructions: tensor cores, asynchronous copies, barriers in memory.
NOTABLE = ("HMMA", "IMMA", "HGMMA", "LDSM", "STSM", "LDGSTS", "UTMALDG", "UTMASTG", "SYNCS")


@dataclass(frozen=True)
class Rule:
    """What kernels of `source` must be in whose demangled name `kernel`, a pattern, is found. `load` and
    `store` are bits of the widest access of global memory, at least; `needs` are instructions that must occur
    on every architecture of `arch`."""

    source: str
    kernel: str
    registers: int = 255
    load: int = 0
    store: int = 0
    needs: tuple[str, ...] = ()
    arch: tuple[str, ...] = ARCHITECTURES
    spills: int = 0  # instructions on local memory, at most
    wgmma_threads: int = 0  # of a block, where warpgroups share registers by setmaxnreg
    constants: tuple[str, ...] = ()  # that the code must hold
    most: int = 0  # instructions in all, at most, where a number is given


#: What CUTLASS's make_gmma_desc gives for the same tiles. The upper word: 128-byte swizzle, groups of 8 rows
#: 1024 bytes apart. The lower one, above the address: how far parts of columns lie apart, 8192 bytes of B's
#: in a product of 256 columns.
BY_ROWS, BY_COLUMNS = ("0x40000040", "0x10000"), ("0x40000040", "0x2000000")
#: Tiles that come by cp.async and ldmatrix to mma.sync.
MMA = ("LDGSTS", "LDSM", "HMMA")
#: That come by TMA to a warpgroup.
WGMMA = ("UTMALDG", "HGMMA", "SYNCS")
#: Whose result goes back the same way.
WGMMA_STORED = (*WGMMA, "STSM", "UTMASTG")

RULES = [
    Rule("gemm_ladder/naive.cu", "naive", 64),
    Rule("gemm_ladder/coalesced.cu", "coalesced", 64),
    Rule("gemm_ladder/shared_tile.cu", "shared_tile", 64),
    Rule("gemm_ladder/register_tile.cu", "register_tile", 128),
    Rule("gemm_ladder/vectorised.cu", "vectorised", 128, 128, 128),
    Rule("gemm_ladder/async_copy.cu", "async_copy", 128, 0, 128, ("LDGSTS",)),
    Rule("gemm/warp_tiles.cu", "warp_tiles<[12]>", 128, 0, 128, ("LDGSTS",)),
    Rule("gemm_ladder/wmma.cu", "wmma_tiles", 128, 0, 128, ("LDGSTS", "HMMA"), ("90a",)),
    Rule("gemm_ladder/wmma.cu", "wmma_tiles", 128, 0, 128, ("LDGSTS", "HMMA"), ("80",), spills=8),
    Rule("gemm_ladder/mma.cu", "mma_tiles", 128, 0, 128, MMA),
    # An epilogue that is chosen at each sum, or a division, is thousands of instructions more.
    *(
        Rule(
            f"gemm_ladder/{step}.cu",
            name,
            168,
            0,
            0,
            needs,
            ("90a",),
            0,
            384,
            BY_ROWS + BY_COLUMNS,
            most,
        )
        for step, name, needs, most in (
            ("wgmma", "wgmma_tiles<.*false, false, 1>", WGMMA_STORED, 700),
            ("wgmma", "wgmma_tiles<.*true, false, 1>", WGMMA_STORED, 1200),
            ("wgmma", "wgmma_tiles<.*true, 1>", WGMMA_STORED, 2300),
            (
                "multicast",
                "wgmma_tiles<.*false, false, 2>",
                (*WGMMA_STORED, "UCGABAR_ARV", "UCGABAR_WAIT"),
                800,
            ),
        )
    ),
    Rule("gemm/grouped_mm.cu", "grouped_mma", 128, 0, 128, MMA),
    *(
        Rule("gemm/grouped_mm.cu", name, 168, 0, 0, WGMMA_STORED, ("90a",), 0, 384, constants, most)
        for name, constants, most in (
            ("grouped_wgmma_tiles<.*true, true>", BY_ROWS, 1800),
            ("grouped_wgmma_tiles<.*true, false>", BY_ROWS + BY_COLUMNS, 1800),
            ("grouped_wgmma_tiles<.*false, false>", BY_COLUMNS, 1200),
        )
    ),
    Rule("gemm/grouped_mm.cu", "grouped_warp_tiles", 128, 0, 128, ("LDGSTS",)),
    # Shared memory has room for two blocks of heads of 128, each of which may have half of the registers. For
    # sm_80 ptxas keeps up to four numbers in local memory, outside of the products.
    Rule("attention/attention_mma.cu", "mma_forward<.*false>", 255, 0, 128, MMA, ("90a",)),
    Rule("attention/attention_mma.cu", "mma_forward<.*true>", 255, 0, 64, MMA, ("90a",)),
    Rule("attention/attention_mma.cu", "mma_forward<.*false>", 255, 0, 128, MMA, ("80",), spills=4),
    Rule("attention/attention_mma.cu", "mma_forward<.*true>", 255, 0, 64, MMA, ("80",), spills=4),
    Rule("attention/attention_mma.cu", "merge_splits", 64),
    Rule(
        "attention/attention_mma_backward.cu",
        "mma_(query_gradient|key_gradients)",
        255,
        0,
        128,
        MMA,
        ("90a",),
    ),
    Rule(
        "attention/attention_mma_backward.cu",
        "mma_(query_gradient|key_gradients)",
        255,
        0,
        128,
        MMA,
        ("80",),
        spills=4,
    ),
    # A block is a warp, so registers bound nothing. Beside the sums of 256 columns some lie in local memory.
    Rule("attention/paged_mma.cu", "paged_mma<.*, (64|128)>", 255, 128, 64, MMA),
    Rule("attention/paged_mma.cu", "paged_mma<.*, 256>", 255, 128, 64, MMA, spills=80),
    Rule("attention/paged_attention.cu", "paged_plain", 128, 128, 0, ("LDGSTS",)),
    Rule("attention/paged_attention.cu", "paged_merge", 128),
    Rule("attention/attention_wgmma.cu", "wgmma_forward", 168, 0, 128, WGMMA, ("90a",), 0, 384, BY_ROWS),
    Rule(
        "attention/attention_wgmma_backward.cu",
        "wgmma_(query_gradient|key_gradients)",
        168,
        0,
        128,
        WGMMA,
        ("90a",),
        0,
        384,
        BY_ROWS,
    ),
    Rule("quant/quant_linear_mma.cu", "mma_kernel", 168, 0, 0, ("LDGSTS", "LDSM", "IMMA")),
    Rule("quant/packed_linear.cu", "linear_kernel", 128, 128),
    Rule("view/copy.cu", "fill_kernel", 64, 0, 128),
    Rule("view/copy.cu", "cast_kernel<Half, BFloat16>|cast_kernel<BFloat16, Half>", 64, 128, 128),
    Rule("optim/multi_tensor.cu", "(adam|sgd|scale|add)_kernel<(Half|BFloat16|float)", 96, 128, 128),
    Rule("nn/loss.cu", r"(^|\W)(backward)_kernel<(Half|BFloat16|float)", 96, 128, 128),
    Rule("nn/loss.cu", r"(^|\W)(forward)_kernel<(Half|BFloat16|float)", 96, 128),
    # float64 moves two numbers in 16 bytes and has more registers to keep; it is not trained in.
    Rule("nn/softmax.cu", r"softmax(_long)?(_backward)?_kernel<(Half|BFloat16|float)", 128, 128, 128),
    Rule("norm/norm.cu", r"\bnorm(_long)?_kernel<(Half|BFloat16|float)", 128, 128, 128),
    Rule("norm/norm.cu", r"^backward_kernel<", 128, 128, 128, ("LDGSTS",)),
    # The sums along channels have instructions on local memory, which these numbers bound.
    Rule("norm/channel_norm.cu", "^map_kernel<", 64, 128, 128),
    Rule("norm/channel_norm.cu", r"^norm_kernel<", 96, 128, 128),
    Rule("norm/channel_norm.cu", r"^norm_long_kernel<", 64, 128, 128, spills=4),
    Rule("norm/channel_norm.cu", "^reduce_rows_kernel<", 64, 128, spills=25),
    Rule("norm/channel_norm.cu", "^reduce_columns_kernel<.*, 4>", 80, 128, spills=64),
    Rule(ROWS, "backward|float|rms_norm", 128, 128, 128, (), (NVRTC_ARCHITECTURE,)),
    # Two rows of bfloat16 are held, and as numbers of float32 once more, in all the registers that there are.
    Rule(ROWS, "layer_norm_forward_BFloat16", 128, 128, 128, (), (NVRTC_ARCHITECTURE,), spills=10),
]


class Instruction(NamedTuple):
    """One line of a disassembly: `/*0010*/ @!P0 LDG.E.128 R4, desc[UR6][R2.64]`."""

    address: int
    predicate: str  # "@!P0", or empty
    name: str  # "LDG.E.128"
    operands: str


@dataclass
class Kernel:
    """What the code of one kernel is: see the table."""

    name: str  # demangled, without arguments
    arch: str
    registers: int = 0
    stack: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    load: int = 0
    store: int = 0
    shared: int = 0  # static shared memory, in bytes
    code: list[Instruction] = field(default_factory=list)  # where it was asked for

    @property
    def spills(self) -> int:
        return self.instructions["LDL"] + self.instructions["STL"]

    @property
    def notable(self) -> str:
        return " ".join(f"{name} {n}" for name in NOTABLE if (n := self.instructions[name]))


def find_tool(name: str) -> str | None:
    """From the PATH, the toolkit, or a wheel."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / name
    if found := shutil.which(name) or (str(toolkit) if toolkit.exists() else None):
        return found
    return find_in_wheel(f"nvidia-cuda-{name}", name)


def find_in_wheel(wheel: str, start: str) -> str | None:
    """The file of the wheel whose name begins so."""
    try:
        files = metadata.files(wheel) or []
    except metadata.PackageNotFoundError:
        return None
    return next((str(f.locate()) for f in files if f.name.startswith(start)), None)


def need_tool(name: str) -> str:
    if found := find_tool(name):
        return found
    raise SystemExit(f"{name} was not found: install the CUDA toolkit, or pip install nvidia-cuda-{name}")


def bits_of(instruction: str) -> int:
    """Of an access such as LDG.E.128.CONSTANT; 32 where nothing else is said."""
    for part in instruction.split(".")[1:]:
        if part in ("128", "64"):
            return int(part)
        if part in ("U8", "S8", "U16", "S16"):
            return int(part[1:])
    return 32


def demangle(names: Iterable[str]) -> dict[str, str]:
    """Names without their arguments and without what stands for the file."""
    names = list(names)
    if not names:
        return {}
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    found = {}
    for mangled, text in zip(names, done.stdout.splitlines(), strict=True):
        text = re.sub(
            r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|warptape::(kernels::)?(cuda::)?", "", text
        )
        found[mangled] = re.sub(r"^void ", "", re.sub(r"\([^()]*\)$", "", text))
    return found


def read_kernels(path: Path, keeps_code: bool = False) -> list[Kernel]:
    """Every kernel in an object or cubin, for each of its architectures."""
    command = [need_tool("cuobjdump"), "-sass", "-res-usage", str(path)]
    tool = find_tool("nvdisasm")
    env = os.environ | {"PATH": f"{Path(tool).parent}:{os.environ['PATH']}"} if tool else None
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    kernels: dict[tuple[str, str], Kernel] = {}
    usage: dict[tuple[str, str], tuple[int, int, int]] = {}
    arch, current, used = "", "", ""
    for line in text.splitlines():
        if m := re.search(r"(?:code for|arch =) sm_(\w+)", line):
            arch = m[1]
        elif m := re.search(r"^\s*Function : (\S+)", line):
            current = m[1]
            kernels[current, arch] = Kernel(current, arch)
        elif m := re.search(r"^ Function (\S+):$", line):
            used = m[1]
        elif m := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
            usage[used, arch] = (int(m[1]), int(m[2]), int(m[3]))
        elif (m := INSTRUCTION.match(line)) and current:
            note(kernels[current, arch], m[3])
            if keeps_code:
                kernels[current, arch].code.append(Instruction(int(m[1], 16), m[2] or "", m[3], m[4].strip()))
    readable = demangle({name for name, _ in kernels})
    for (name, at), kernel in kernels.items():
        kernel.name = readable[name]
        # A cubin says its architecture after the usage.
        used_by = usage.get((name, at)) or usage.get((name, ""), (0, 0, 0))
        kernel.registers, kernel.stack, kernel.shared = used_by
    return list(kernels.values())


def note(kernel: Kernel, instruction: str) -> None:
    name = instruction.split(".")[0]
    kernel.instructions[name] += 1
    if name in ("LDG", "LD", "LDGSTS"):
        kernel.load = max(kernel.load, bits_of(instruction))
    if name in ("STG", "ST"):
        kernel.store = max(kernel.store, bits_of(instruction))


def faults(kernel: Kernel, rule: Rule) -> list[str]:
    """What of the rule the kernel breaks."""
    found = []
    if kernel.registers > rule.registers:
        found.append(f"{kernel.registers} registers, at most {rule.registers}")
    if kernel.spills > rule.spills:
        found.append(f"{kernel.spills} instructions on local memory, at most {rule.spills}")
    if rule.most and kernel.instructions.total() > rule.most:
        found.append(f"{kernel.instructions.total()} instructions, at most {rule.most}")
    if kernel.load < rule.load:
        found.append(f"widest load has {kernel.load} bits, expected {rule.load}")
    if kernel.store < rule.store:
        found.append(f"widest store has {kernel.store} bits, expected {rule.store}")
    found += [f"has no {name}" for name in rule.needs if not kernel.instructions[name]]
    if rule.wgmma_threads:
        import sass_flow  # which reads instructions as this module gives them

        found += sass_flow.asynchronous_registers(kernel.code) + sass_flow.fences(kernel.code)
        found += sass_flow.register_budgets(kernel.code, kernel.registers, rule.wgmma_threads)
        text = " ".join(one.operands for one in kernel.code)
        found += [f"has no constant {c}" for c in rule.constants if not re.search(rf"\b{c}\b", text)]
    return [f"{kernel.name} (sm_{kernel.arch}): {text}" for text in found]


def check(kernels: dict[str, list[Kernel]], rules: Iterable[Rule], archs: Iterable[str]) -> list[str]:
    """Faults of the kernels, by source, against the rules of those sources."""
    found = []
    for rule in rules:
        for arch in archs:
            if arch not in rule.arch or rule.source not in kernels:
                continue
            mine = [k for k in kernels[rule.source] if k.arch == arch and re.search(rule.kernel, k.name)]
            if not mine:
                found.append(f"{rule.source}: no kernel '{rule.kernel}' for sm_{arch}")
            for kernel in mine:
                found += faults(kernel, rule)
    return found


def table(kernels: Iterable[Kernel]) -> str:
    lines = [
        "| kernel | sm | registers | on local memory | widest load | widest store | instructions |",
        "|" + " --- |" * 7,
    ]
    lines += [
        f"| {k.name} | {k.arch} | {k.registers} | {k.spills} | {k.load} | {k.store} | {k.notable} |"
        for k in kernels
    ]
    return "\n".join(lines)


def source_file(source: str) -> Path:
    """Where the source of a rule lies: among warptape's kernels, or the examples."""
    return next(p for folder in ("kernels/cuda", "examples") if (p := ROOT / folder / source).exists())


def compile_source(source: Path, arch: str, out: Path) -> Path:
    """As the build does, to a cubin."""
    flags = [
        "-std=c++20",
        "-O3",
        "--expt-relaxed-constexpr",
        "--diag-suppress=177",
        "-DWARPTAPE_KERNEL_DEVICE=CUDA",
    ]
    flags += [f"-I{ROOT / folder}" for folder in ("", "kernels/include", "csrc")]
    if source.stem == "norm":  # as cmake/Cuda.cmake
        flags.append("--fmad=false")
    target = out / f"{source.stem}.{arch}.cubin"
    code = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    command = [need_tool("nvcc"), *flags, code, "-cubin", "-o", str(target), str(source)]
    done = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)
    print(done.stderr, end="", file=sys.stderr)
    if "are serialized" in done.stderr:  # ptxas C7510 to C7515: each wgmma waits for the one before
        raise SystemExit(f"{source.name} for sm_{arch}: its wgmma instructions run one after the other")
    return target


def compile_rows(build: Path, out: Path) -> list[Kernel]:
    """Chains with norms, compiled by the library's own way through NVRTC, which needs no driver."""
    program, folder, cache = out / "row_kernels", out / "rows", out / "cache"
    sources = [ROOT / "tests/chain/row_kernels.cpp", build / "kernel_headers.cpp"]
    sources += [
        ROOT / f"kernels/cuda/{name}.cpp"
        for name in ("fused/chain_source", "fused/chain_compile", "libraries/library")
    ]
    flags = [
        "-std=c++20",
        "-O1",
        "-DWARPTAPE_KERNEL_DEVICE=CUDA",
        f"-I{ROOT}",
        f"-I{ROOT / 'kernels/include'}",
    ]
    subprocess.run(["c++", *flags, *map(str, sources), "-ldl", "-o", str(program)], check=True)
    folder.mkdir()
    cache.mkdir()
    # As find_tool does; where there is no wheel the library looks for the toolkit's itself.
    found = find_in_wheel("nvidia-cuda-nvrtc", "libnvrtc.so")
    env = os.environ | {"WARPTAPE_CACHE": str(cache)}
    if found:
        env["WARPTAPE_CUDA_LIBRARIES"] = str(Path(found).parent)
    subprocess.run([str(program), NVRTC_ARCHITECTURE, str(folder)], check=True, env=env)
    kernels = []
    for file in sorted(folder.glob("*.cubin")):
        for kernel in read_kernels(file):
            kernel.name = f"{file.stem}: {kernel.name}"  # all have one name
            kernels.append(kernel)
    return kernels


def gather(paths: Iterable[Path], archs: Iterable[str], compiles: bool) -> dict[str, list[Kernel]]:
    """Kernels by source: "nn/loss.cu"."""
    sources = {rule.source for rule in RULES}
    followed = {rule.source for rule in RULES if rule.wgmma_threads}
    found: dict[str, list[Kernel]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if compiles:
            for source in sorted(sources - {ROWS}):
                for arch in archs:
                    at = compile_source(source_file(source), arch, Path(folder))
                    found.setdefault(source, []).extend(read_kernels(at, source in followed))
        for path in paths:
            files = sorted(path.rglob("*.cu.o")) if path.is_dir() else [path]
            for file in files:
                name = re.sub(r"(\.\w+)?\.cubin$|\.cu\.o$", ".cu", file.name)
                source = next((s for s in sources if s.rsplit("/", 1)[-1] == name), None)
                if source or not path.is_dir():
                    found.setdefault(source or name, []).extend(read_kernels(file, source in followed))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, help="objects, cubins or folders of objects")
    parser.add_argument("--compile", action="store_true", help="compile the sources of the rules with nvcc")
    parser.add_argument(
        "--arch", action="append", choices=ARCHITECTURES, help="default: what is in the files"
    )
    parser.add_argument("--rows", type=Path, metavar="BUILD", help="compile chains with norms by NVRTC")
    options = parser.parse_args()
    if not options.paths and not options.compile and not options.rows:
        parser.error("expected objects to read, --compile or --rows")
    kernels = gather(options.paths, options.arch or ARCHITECTURES, options.compile)
    if options.rows:
        with tempfile.TemporaryDirectory() as folder:
            kernels[ROWS] = compile_rows(options.rows, Path(folder))
    there = {k.arch for of_source in kernels.values() for k in of_source}
    archs = [*options.arch, NVRTC_ARCHITECTURE] if options.arch else sorted(there)
    hot = [
        k
        for s in sorted(kernels)
        for k in kernels[s]
        if any(r.source == s and re.search(r.kernel, k.name) for r in RULES)
    ]
    print(table(k for k in hot if k.arch in archs))
    wrong = check(kernels, RULES, archs)
    if not hot:
        wrong.append("no kernel of the rules was found")
    print("\n".join(["", *wrong]) if wrong else "\nall rules hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
