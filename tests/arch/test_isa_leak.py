"""No processor may meet an instruction that it lacks. Kernels are built once per instruction set, each in a
namespace of its own; an inline function or template outside of it would be merged by the linker into one
copy, perhaps a wide one, which then runs everywhere. So the built library is disassembled: a function may use
the instructions of the namespace it is in, and outside of these namespaces the baseline only."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

# Levels as in cmake/Kernels.cmake, by the namespace as it stands in a mangled name.
LEVELS = {"5sse42": 1, "4avx2": 2, "6avx512": 3, "10avx512bf16": 4}
NAMESPACE = re.compile("|".join(LEVELS))
# Functions with an instruction above their namespace, behind a check at run time: mangled part, level.
GUARDED = {
    "6avx51210gemm_microIj": 4,  # pairs of bfloat16; matmul.cpp takes them where has_bf16_dot()
    "6avx51212_GLOBAL__N_112packed_microINS2_13PackedBf16Dot": 4,  # the same of packed_linear.cpp
    "6avx51212_GLOBAL__N_111quant_microINS2_9QuantKindILi8ELb1E": 4,  # VNNI, which quant_linear.cpp asks for
    "6avx51212_GLOBAL__N_111quant_microINS2_9QuantKindILi4ELb1E": 4,
    "6avx51212_GLOBAL__N_14tileILb1E": 4,  # VNNI, which int8_conv.cpp asks for
    "6avx51212_GLOBAL__N_111count_microINS2_13ByInstruction": 4,  # VPOPCNTDQ of binary_linear.cpp
    # AMX, for which dispatch_gemm, dispatch_attention and the files of bytes and packed weights ask.
    "12GemmBf16Tile": 4,
    "14AttentionTiles": 4,
    "6avx51212_GLOBAL__N_18TileTask": 4,
    "6avx51212_GLOBAL__N_19amx_micro": 4,
    "12multiply_amx": 4,
    "15for_quant_tiles": 4,
    "6avx51211quant_parts": 4,
    "by_wide_products": 2,  # of crc32.cpp, which takes it where the processor has VPCLMULQDQ
}
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
# What x86-64-v2 lacks: all AVX (they start with v) and these, which v3 brings into integer code.
V3 = re.compile(
    r"^(v(?!err$|erw$)\w+|andn|bextr|blsi|blsmsk|blsr|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|movbe|lzcnt)$"
)
V4_OPERAND = re.compile(r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])\b|%k[0-7]\b")
V4_EXTENSION = re.compile(r"^v(?:dpbf16|cvtne2?ps2bf16|pdpbusd|popcnt[dq])")  # bfloat16, VNNI, VPOPCNTDQ
AMX = re.compile(r"^(?:tdp\w+|tile(?:load|store|zero|release)\w*|(?:ld|st)tilecfg)$")


def level_of(mnemonic: str, operands: str) -> int:
    if AMX.match(mnemonic):
        return 4
    if not V3.match(mnemonic):
        return 3 if V4_OPERAND.search(operands) else 1
    if V4_EXTENSION.match(mnemonic):
        return 4
    return 3 if V4_OPERAND.search(operands) else 2


def allowed_level(symbol: str) -> int:
    guarded = [level for part, level in GUARDED.items() if part in symbol]
    return max(guarded + [LEVELS[found] for found in NAMESPACE.findall(symbol)], default=1)


def leaks(library: Path) -> list[str]:
    """Functions of `library` with an instruction above the level of the namespace that they are in."""
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True, check=True
    ).stdout
    bad, symbol, limit = [], "", 1
    for line in text.splitlines():
        if line.startswith(" "):
            if symbol:
                mnemonic, _, operands = line.split("\t", 1)[-1].partition(" ")
                if level_of(mnemonic, operands) > limit:
                    bad.append(f"{symbol}: {mnemonic} {operands.strip()}")
                    symbol = ""  # one finding a function is enough
        elif match := FUNCTION.match(line):
            symbol = match[1]
            limit = allowed_level(symbol)
    return bad


def has_local_symbols(library: Path) -> bool:
    return bool(
        subprocess.run(["nm", str(library)], capture_output=True, text=True, check=True).stdout.strip()
    )


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    if not shutil.which("objdump") or not shutil.which("nm"):
        pytest.skip("objdump and nm (binutils, which gcc brings) are not installed")


@pytest.mark.parametrize("name", ["libwarptape.so", "_C*.so"])
def test_no_wide_instruction_outside_its_namespace(name: str) -> None:
    spec = importlib.util.find_spec("warptape._C")
    assert spec is not None, "warptape is not installed"
    library = next(Path(str(spec.origin)).parent.glob(name))
    assert has_local_symbols(library), (
        f"{library} is stripped; this test needs its symbols (install.strip = false)"
    )
    assert leaks(library) == []


WIDE = """
#include <vector>
inline float shared(const float* x, int n) {{  // outside of the namespace: the linker keeps one copy for all
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}}
namespace warptape::kernels::{isa} {{
float (*volatile take)(const float*, int) = {call};
float own(const float* x, int n) {{
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i + 1];
  return sum + take(x, n);
}}
}}
"""


@pytest.mark.parametrize(("isa", "flags"), [("avx2", "-march=x86-64-v3"), ("avx512", "-march=x86-64-v4")])
@pytest.mark.parametrize("leak", [True, False])
def test_a_planted_leak_is_found(isa: str, flags: str, leak: bool, tmp_path: Path) -> None:
    if not shutil.which("g++"):
        pytest.skip("no g++ to build the planted leak with")
    source = tmp_path / "wide.cpp"
    source.write_text(WIDE.format(isa=isa, call="shared" if leak else "nullptr"))
    library = tmp_path / "wide.so"
    command = [
        "g++",
        "-std=c++20",
        "-O3",
        "-ffast-math",
        flags,
        "-fPIC",
        "-shared",
        str(source),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    found = leaks(library)
    assert bool(found) == leak, found
    assert all(line.startswith("_Z6shared") for line in found)


@pytest.mark.parametrize(
    ("mnemonic", "operands", "level"),
    [
        ("tdpbf16ps", "%tmm7,%tmm5,%tmm3", 4),
        ("ldtilecfg", "0x80(%rsp)", 4),
        ("addps", "%xmm1,%xmm0", 1),
        ("verr", "%ax", 1),
        ("vaddss", "%xmm1,%xmm0,%xmm0", 2),
        ("shlx", "%eax,%edx,%ecx", 2),
        ("vaddps", "%ymm1,%ymm0,%ymm0", 2),
        ("vaddps", "%zmm1,%zmm0,%zmm0", 3),
        ("vaddps", "%ymm17,%ymm0,%ymm0", 3),
        ("kmovw", "%k1,%eax", 3),
        ("vdpbf16ps", "%zmm1,%zmm0,%zmm0", 4),
        ("vpdpbusd", "%zmm1,%zmm0,%zmm0", 4),
    ],
)
def test_level_of_an_instruction(mnemonic: str, operands: str, level: int) -> None:
    assert level_of(mnemonic, operands) == level
