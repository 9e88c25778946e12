"""tools/sass_gate.py: what it reads of machine code, and that it refuses a kernel that breaks its rules."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from time_limits import seconds

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import sass_gate  # noqa: E402
from sass_gate import Kernel, Rule  # noqa: E402

# As cuobjdump -sass -res-usage prints a cubin.
LISTING = """
Resource usage:
 Common:
  GLOBAL:0
 Function _Z5scalePf:
  REG:40 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0

	code for sm_90a
		Function : _Z5scalePf
        /*0000*/                   LDC R1, c[0x0][0x28] ;     /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR6][R2.64] ;  /* 0x00009000ff6a7b82 */
        /*0020*/                   STL [R1], R4 ;  /* 0x00009000ff6a7b82 */
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R10, R4 ;  /* 0x0000 */
        /*0040*/              @P1  STG.E.U16 desc[UR6][R2.64], R4 ;  /* 0x00009000ff6a7b82 */
"""

PLANTED = """
// A copy of a struct that is aligned to 2 bytes, and more sums than there are registers.
struct Eight { unsigned short values[8]; };
__global__ void __launch_bounds__(1024, 2) planted(Eight* p, const float* x, int n) {
  float sums[64];
  for (int i = 0; i < 64; ++i) sums[i] = x[i * 64 + threadIdx.x];
  for (int k = 0; k < n; ++k)
    for (int i = 0; i < 64; ++i) sums[i] = sums[i] * x[k] + x[k + i];
  Eight out;
  for (int j = 0; j < 8; ++j) {
    float total = 0;
    for (int i = 0; i < 8; ++i) total += sums[8 * j + i];
    out.values[j] = (unsigned short)total;
  }
  p[threadIdx.x] = out;
}
"""


def test_reads_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "cuobjdump"
    tool.write_text(f"#!/bin/sh\ncat <<'EOT'\n{LISTING}\nEOT\n")
    tool.chmod(0o755)
    monkeypatch.setattr(sass_gate, "find_tool", lambda name: str(tool))
    [kernel] = sass_gate.read_kernels(tmp_path / "any.cubin")
    assert (kernel.name, kernel.arch, kernel.registers, kernel.stack) == ("scale", "90a", 40, 8)
    assert (kernel.load, kernel.store, kernel.spills, kernel.notable) == (128, 16, 1, "HMMA 1")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Rule("a.cu", "k", 32), "40 registers, at most 32"),
        (Rule("a.cu", "k", 64, load=128), "widest load has 64 bits"),
        (Rule("a.cu", "k", 64, store=128), "widest store has 32 bits"),
        (Rule("a.cu", "k", 64, needs=("HGMMA",)), "has no HGMMA"),
        (Rule("a.cu", "k", 64, most=6), "7 instructions, at most 6"),
        (Rule("a.cu", "other", 64), "no kernel 'other' for sm_90a"),
    ],
)
def test_each_rule_can_fail(rule: Rule, says: str) -> None:
    seven = Counter({"FADD": 4, "FMUL": 3})
    kernels = {"a.cu": [Kernel("k<float>", "90a", 40, instructions=seven, load=64, store=32)]}
    [fault] = sass_gate.check(kernels, [rule], ["90a"])
    assert says in fault
    assert not sass_gate.check(kernels, [Rule("a.cu", "k", 40, 64, 32, most=7)], ["90a"])


def test_chains_have_a_rule() -> None:
    """They are of an architecture that no other kernel has."""
    kernels = {sass_gate.ROWS: [Kernel("rms_norm_forward_float: chain", "90", 64, load=128, store=64)]}
    kernels[sass_gate.ROWS].append(
        Kernel("layer_norm_forward_BFloat16: chain", "90", 64, load=128, store=128)
    )
    [fault] = sass_gate.check(kernels, sass_gate.RULES, ["90a", "90"])
    assert "rms_norm_forward_float: chain (sm_90): widest store has 64 bits" in fault


@pytest.mark.skipif(
    not all(map(sass_gate.find_tool, ("nvcc", "cuobjdump", "nvdisasm"))), reason="needs nvcc and cuobjdump"
)
@pytest.mark.timeout(seconds(300))
def test_a_planted_kernel_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "planted.cu"
    source.write_text(PLANTED)
    kernels = {"planted.cu": sass_gate.read_kernels(sass_gate.compile_source(source, "90a", tmp_path))}
    found = "\n".join(
        sass_gate.check(kernels, [Rule("planted.cu", "planted", 24, 128, 128, ("HMMA",))], ["90a"])
    )
    for says in ("registers, at most 24", "on local memory", "widest store", "has no HMMA"):
        assert says in found
