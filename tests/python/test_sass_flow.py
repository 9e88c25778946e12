"""tools/sass_flow.py: what products under way touch, fences and register budgets, on short listings. Each
fault is planted once, and the same code without it is clean."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from sass_flow import asynchronous_registers, fences, register_budgets
from sass_gate import INSTRUCTION, Instruction

# A loop of products whose group is waited for before its sums are stored.
LOOP = [
    "LDS.128 R152, [R2]",
    "WARPGROUP.ARRIVE",
    "HGMMA.64x64x16.F32.BF16 R24, R152, gdesc[UR4], R24",
    "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24, gsb0",
    "IADD3 R3, R3, 0x1, RZ",
    "WARPGROUP.DEPBAR.LE gsb0, 0x0",
    "@P0 BRA 0x0000",
    "FADD R24, R24, R25",
    "STG.E.128 desc[UR6][R2.64], R24",
    "EXIT",
]


def code_of(lines: Sequence[str]) -> list[Instruction]:
    found = [INSTRUCTION.match(f"        /*{16 * k:04x}*/  {line} ;") for k, line in enumerate(lines)]
    return [Instruction(int(m[1], 16), m[2] or "", m[3], m[4].strip()) for m in found if m]


def test_a_right_loop_has_no_fault() -> None:
    assert asynchronous_registers(code_of(LOOP)) == []


@pytest.mark.parametrize(
    ("at", "line", "register"),
    [
        (5, "NOP", 24),  # nobody waits: the sum is read
        (4, "MOV R55, R3", 55),  # the last of 32 sums is written
        (4, "FADD R3, R24, R3", 24),  # a sum is read
        (4, "MOV R155, RZ", 155),  # the last register of A is written
        (4, "LDS.128 R20, [R2]", None),  # ends before the sums
        (4, "LDS.128 R21, [R2]", 24),  # reaches into them
        (4, "LDSM.16.M88.4 R21, [R2]", 24),  # of four matrices, too
        (4, "STSM.16.M88.4 [R2], R21", 24),
        (4, "IADD3 R3, R152, 0x1, RZ", None),  # A may be read
        (5, "WARPGROUP.DEPBAR.LE gsb0, 0x1", 24),  # one group is left
    ],
)
def test_registers_of_products_under_way(at: int, line: str, register: int | None) -> None:
    found = asynchronous_registers(code_of([*LOOP[:at], line, *LOOP[at + 1 :]]))
    assert bool(found) == (register is not None)
    assert register is None or f"touches R{register} " in " ".join(found) or at == 5


def test_what_the_next_round_of_a_loop_does_counts() -> None:
    """Without its wait the loop's own load overwrites A while the last round's product reads it."""
    lines = [*LOOP[:5], "NOP", LOOP[6], "WARPGROUP.DEPBAR.LE gsb0, 0x0", *LOOP[7:]]
    assert any("LDS.128 touches R152" in fault for fault in asynchronous_registers(code_of(lines)))


def test_a_called_function_is_followed() -> None:
    """Between a product and its wait a function may be called that leaves the registers alone."""
    called = [*LOOP[:4], "CALL.REL.NOINC 0x00a0", *LOOP[5:], "MOV R{}, RZ", "RET.REL.NODEC R2 0x0"]
    for register, wrong in ((60, False), (30, True)):
        lines = [line.format(register) for line in called]
        assert bool(asynchronous_registers(code_of(lines))) == wrong


def test_stores_to_shared_memory_are_published_on_every_way() -> None:
    product = "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24, gsb0"
    right = ["STS.128 [R2], R4", "FENCE.VIEW.ASYNC.S", product, "EXIT"]
    around = ["STS.128 [R2], R4", "@P0 BRA 0x0030", "FENCE.VIEW.ASYNC.S", product, "EXIT"]
    assert fences(code_of(right)) == []
    assert len(fences(code_of(around))) == 1
    assert len(fences(code_of([right[1], right[0], *right[2:]]))) == 1


def test_budgets_of_setmaxnreg() -> None:
    def code(given: str, taken: str, most: int, most_of_producer: int = 10) -> list[Instruction]:
        return code_of(
            [
                "@P0 BRA 0x0040",
                f"USETMAXREG.TRY_ALLOC.CTAPOOL UP0, {taken}",
                f"MOV R{most}, RZ",
                "EXIT",
                f"USETMAXREG.DEALLOC.CTAPOOL {given}",
                f"MOV R{most_of_producer}, RZ",
                "EXIT",
            ]
        )

    assert register_budgets(code("0x18", "0xf0", 239), 168, 384) == []
    assert "R240" in register_budgets(code("0x18", "0xf0", 240), 168, 384)[0]
    assert "R24" in register_budgets(code("0x18", "0xf0", 239, 24), 168, 384)[0]
    assert "wait for ever" in register_budgets(code("0x20", "0xf0", 239), 168, 384)[0]
