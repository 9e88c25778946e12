"""tools/estimated_times.py: the way through a hand-written disassembly, what fits on a multiprocessor, the
times and the verdict; and that what docs/measurements/cuda.md says is proven names tests that are there."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import estimated_times  # noqa: E402
from estimated_rows import ROWS, Part, Row, Target  # noqa: E402
from estimated_times import PROCESSORS, blocks_that_fit, estimate, last_round, verdict  # noqa: E402
from hot_path import Exactly, Loop, hot_path  # noqa: E402
from sass_gate import INSTRUCTION, Instruction, Kernel, source_file  # noqa: E402

# A loop over pieces of 16 bytes that the compiler unrolled twice, one for the odd piece, and single elements.
LISTING = """
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   ISETP.GE.AND P0, PT, R0, UR4, PT ;
        /*0020*/               @P0 BRA 0xd0 ;
        /*0030*/                   LDG.E.128 R4, desc[UR6][R2.64] ;
        /*0040*/                   LDG.E.128 R8, desc[UR6][R2.64+0x1000] ;
        /*0050*/                   FADD R4, R4, R8 ;
        /*0060*/                   FADD R5, R5, R9 ;
        /*0070*/                   ISETP.GE.AND P1, PT, R0, UR4, PT ;
        /*0080*/              @!P1 BRA 0x30 ;
        /*0090*/                   LDG.E.128 R4, desc[UR6][R2.64] ;
        /*00a0*/                   FADD R4, R4, R8 ;
        /*00b0*/               @P1 BRA 0x90 ;
        /*00c0*/                   BRA 0x110 ;
        /*00d0*/                   LDG.E.U16 R4, desc[UR6][R2.64] ;
        /*00e0*/                   FADD R4, R4, R8 ;
        /*00f0*/               @P1 BRA 0xd0 ;
        /*0100*/                   NOP ;
        /*0110*/                   MUFU.RCP R4, R4 ;
        /*0120*/                   STG.E desc[UR6][R2.64], R4 ;
        /*0130*/                   EXIT ;
        /*0140*/                   BRA 0x140 ;
"""


def code_of(listing: str) -> list[Instruction]:
    found = [m for line in listing.splitlines() if (m := INSTRUCTION.match(line))]
    return [Instruction(int(m[1], 16), m[2] or "", m[3], m[4].strip()) for m in found]


def test_a_body_counts_for_as_many_trips_as_it_was_unrolled() -> None:
    # 24 trips of one load each are 12 of the body with two; the loop for the odd piece makes none.
    issued = hot_path(code_of(LISTING), [Loop(r"LDG\S*\.128", 1, 24)])
    assert issued["LDG.E.128"] == 24 and issued["FADD"] == 24
    # Before and after the loop: 3 and, with the branch over the single elements, 4.
    assert sum(issued.values()) == 12 * 6 + 3 + 4
    assert issued["MUFU.RCP"] == 1 and issued["LDG.E.U16"] == issued["NOP"] == 0


def test_where_nothing_matters_the_shortest_way_is_taken() -> None:
    issued = hot_path(code_of(LISTING), prefer="HMMA")
    assert issued["LDG.E.U16"] == 1 and issued["LDG.E.128"] == 0
    assert sum(issued.values()) == 3 + 4 + 3


def test_each_loop_with_the_marker_may_make_the_trips() -> None:
    issued = hot_path(code_of(LISTING), [Loop(r"LDG\S*\.128", 1, 24, each=True)])
    assert issued["LDG.E.128"] == 48


def test_ways_are_told_apart_by_a_count() -> None:
    listing = """
        /*0000*/  @P0 BRA 0x40 ;
        /*0010*/      LDGSTS.E [R0], desc[UR6][R2.64] ;
        /*0020*/      LDGSTS.E [R0], desc[UR6][R2.64] ;
        /*0030*/  @P1 BRA 0x50 ;
        /*0040*/      LDGSTS.E [R0], desc[UR6][R2.64] ;
        /*0050*/      EXIT ;
    """
    for wanted, found in ((0, 1), (1, 1), (2, 2), (3, 3), (9, 3)):
        assert hot_path(code_of(listing), exactly=Exactly("LDGSTS", wanted))["LDGSTS.E"] == found


def test_loops_within_loops_multiply() -> None:
    listing = """
        /*0000*/      BAR.SYNC 0x0 ;
        /*0010*/      HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0020*/  @P0 BRA 0x10 ;
        /*0030*/  @P1 BRA 0x0 ;
        /*0040*/      EXIT ;
    """
    issued = hot_path(code_of(listing), [Loop(r"BAR\.SYNC", 1, 5), Loop("HMMA", 1, 8)])
    assert issued == Counter({"HMMA.16816.F32": 40, "BRA": 45, "BAR.SYNC": 5, "EXIT": 1})


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (256, 32, 0, 8),  # 64 warps
        (256, 64, 0, 4),  # registers
        (256, 65, 0, 3),  # they are given by 8 a thread
        (384, 168, 1024, 1),
        (32, 16, 0, 32),  # blocks
        (128, 32, 48 * 1024, 4),  # shared memory
        (128, 32, 229 * 1024, 0),
    ],
)
def test_what_fits(threads: int, registers: int, shared: int, blocks: int) -> None:
    assert blocks_that_fit(threads, registers, shared) == blocks


def test_the_last_round() -> None:
    assert last_round(132, 132) == 1 and last_round(133, 132) == pytest.approx(264 / 133)


def test_times_of_a_kernel() -> None:
    kernel = Kernel("k<float>", "90a", registers=32)
    part = Part("k.cu", "k", 256, PROCESSORS * 8, bytes=4.8e12, operations=67e12, units=PROCESSORS * 8)
    # 8 blocks of 8 warps on each multiprocessor, 4 of whose instructions start at a clock.
    found = estimate(part, kernel, Counter({"FADD": 900, "MUFU.EX2": 100}))
    assert (found.blocks, found.warps, found.slots) == (8, 64, 1000)
    assert found.memory == pytest.approx(1) and found.arithmetic == pytest.approx(1)
    assert found.issue == pytest.approx(1000 * 64 / 4 / estimated_times.CLOCK)
    assert found.special == pytest.approx(100 * 64 * 2 / estimated_times.CLOCK)
    half_full = estimate(part._replace(blocks=PROCESSORS * 9, units=PROCESSORS * 9), kernel, Counter(FADD=1))
    assert half_full.arithmetic == pytest.approx(16 / 9)


def test_a_row_that_misses_says_which_target() -> None:
    row = Row("add", "1 M", (), (Target("85 %", 2.0), Target("90 %", 1.0)))
    assert verdict(0.5, row) == "not ruled out"
    assert verdict(1.5, row) == "**misses 90 %**"
    assert verdict(3.0, row) == "**misses 85 % and 90 %**"
    assert verdict(3.0, row._replace(targets=())) == "no target"


def test_tables_of_one_row_and_what_it_lacks() -> None:
    kernel = Kernel("copy<float>", "90a", registers=32, code=code_of(LISTING))
    part = Part("view/copy.cu", "^copy<float>", 256, 1000, 4.8e6, loops=(Loop(r"LDG\S*\.128", 1, 24),))
    row = Row("copy", "1 M", (part,), (Target("85 %", 0.9e-6), Target("50 %", 2e-6)))
    times, figures, missing = estimated_times.tables([row, row], {"view/copy.cu": [kernel]})
    assert not missing and len(times) == len(figures) == 4
    assert times[2] == "| copy | 1 M | **1** | 1.43 | memory | 85 % 0.9; 50 % 2 | **misses 85 %** |"
    assert figures[2].startswith("| copy | 32 | 8 (100%) | ") and "| 1 | " in figures[2]
    assert {line.count("|") for line in times} == {8} and {line.count("|") for line in figures} == {9}
    times, figures, missing = estimated_times.tables([row], {})
    assert (
        len(times) == len(figures) == 2
        and "expected one kernel '^copy<float>' for sm_90a, got none" in missing[0]
    )


def test_rows_are_of_kernels_that_are_there() -> None:
    for row in ROWS:
        for part in row.parts:
            source = source_file(part.source).read_text()
            name = re.match(r"\^(\w+)", part.kernel)
            # Kernels of a driver lie in its header.
            drivers = [
                ROOT / "kernels/cuda" / f
                for f in (
                    "elementwise/elementwise.cuh",
                    "reduce/reduce.cuh",
                    "norm/norm.cuh",
                    "gemm/grouped_wgmma.cuh",
                )
            ]
            assert name and any(name[1] in text for text in (source, *(d.read_text() for d in drivers)))
            assert part.bytes > 0 and part.blocks > 0


def section(title: str) -> str:
    text = (ROOT / "docs/measurements/cuda.md").read_text()
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_the_tables_in_the_docs_have_every_row() -> None:
    names = re.findall(r"^\| ([^|]+?) \|", section("Estimated times, one H200"), re.M)
    assert names == ["kernel", "---", *(row.name for row in ROWS)] * 2


def test_what_is_proven_names_files_that_are_there() -> None:
    text = section("What is proven by which means")
    files = set(re.findall(r"`((?:tests|tools|benchmarks|\.ci)/?[\w./]*)(?:::(\w+))?`", text))
    assert len(files) > 20
    for path, test in files:
        assert (ROOT / path).exists(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), (path, test)


def test_products_by_mma_sync_get_a_part_of_the_peak() -> None:
    part = Part("x.cu", "x", 128, PROCESSORS, 0.0, 989e12, "bf16")
    kernel = Kernel("x", "90a", 32, 0, Counter())
    by_warpgroups = estimate(part, kernel, Counter({"HGMMA.64x256x16.F32.BF16": 1}))
    by_warps = estimate(part, kernel, Counter({"HMMA.16816.F32.BF16": 1}))
    assert by_warpgroups.arithmetic == pytest.approx(1) and by_warps.arithmetic == pytest.approx(1 / 0.62)
    moved = estimate(part._replace(bytes=4.8e12, operations=0.0), kernel, Counter())
    assert moved.time == pytest.approx(1) and moved.h100_time == pytest.approx(4.8 / 3.35)
