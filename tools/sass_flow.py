"""What must hold along every way through a kernel's machine code, for instructions that end later than they
are issued. tools/sass_gate.py asks for it; each function gives the faults that it found.

WGMMA (HGMMA in machine code) reads its operands and writes its sums until a DEPBAR waits for its group. The
compiler keeps other instructions off those registers. Where it does not, results are wrong on a GPU alone: an
emulator runs products at one moment. TMA and WGMMA read shared memory past ordinary stores, which a fence
must publish. setmaxnreg gives a warpgroup's registers to others: who names one that it gave reads another's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from hot_path import goes_on, target_of
from sass_gate import Instruction

REGISTER = re.compile(r"\bR(\d+)(\.64)?\b")
GROUP = 128  # threads of a warpgroup


class Product(NamedTuple):
    """An HGMMA: the registers of its sums, and of A where it does not lie in shared memory."""

    sums: frozenset[int]
    left: frozenset[int]
    ends_group: bool


class Pending(NamedTuple):
    """Products under way: those of closed groups, oldest first, and of the group that is open."""

    groups: tuple[frozenset[Product], ...] = ()
    open: frozenset[Product] = frozenset()

    def all(self) -> Iterable[Product]:
        yield from (p for group in self.groups for p in group)
        yield from self.open


def product_of(one: Instruction) -> Product | None:
    if not one.name.startswith("HGMMA"):
        return None
    shape = re.match(r"x(\d+)x\d+\S*\s+(.*)", one.operands)
    if not shape:
        raise ValueError(f"HGMMA of an unknown form: {one.operands}")
    columns, operands = int(shape[1]), [x.strip() for x in shape[2].split(",")]
    first = REGISTER.fullmatch(operands[0])
    assert first, one.operands
    sums = frozenset(range(int(first[1]), int(first[1]) + columns // 2))  # 64 rows over 128 threads
    left = REGISTER.fullmatch(operands[1])
    read = frozenset(range(int(left[1]), int(left[1]) + 4)) if left else frozenset()
    return Product(sums, read, any("gsb" in x for x in operands))


def width_of(name: str) -> int:
    """Registers of an operand: of 128 bits, 64, or 32."""
    if ".128" in name or ".x4" in name.lower() or re.search(r"\.MT?88\.4$", name):
        return 4
    return 2 if ".64" in name or ".WIDE" in name or re.match(r"D[A-Z]", name) else 1


def registers_of(one: Instruction) -> tuple[set[int], set[int]]:
    """Those that it may write, those that it reads. The first operand is written, but for stores; of a wide
    instruction every operand counts as wide."""
    width = width_of(one.name)
    written: set[int] = set()
    read: set[int] = set()
    stores = re.match(r"(ST|RED|SYNCS|UTMA|BRA|EXIT|R2UR)", one.name)
    for place, operand in enumerate(one.operands.split(",")):
        for found in REGISTER.finditer(operand):
            first = int(found[1])
            span = set(range(first, first + max(width, 2 if found[2] else 1)))
            is_address = "[" in operand
            (written if place == 0 and not stores and not is_address else read).update(span)
    return written, read


def walk(
    code: Sequence[Instruction],
    start: object,
    step: Callable[[Instruction, object], object],
    first: int | None = None,
) -> None:
    """Follows every way from the first instruction, through called functions and back, once for each state in
    which an instruction is reached."""
    at = {one.address: one for one in code}
    follows = {a.address: b.address for a, b in pairwise(code)}
    returns: tuple[int, ...] = ()
    left = [(code[0].address if first is None else first, start, returns)]
    seen = set(left)
    while left:
        address, state, returns = left.pop()
        one = at[address]
        state = step(one, state)
        reached = [(target_of(one), returns)]
        if goes_on(one) or one.name.startswith("CALL"):
            reached.append((follows.get(address), returns))
        if one.name.startswith("CALL"):
            called = re.search(r"0x([0-9a-f]+)\s*$", one.operands)
            if not called or address not in follows:
                raise ValueError(f"{address:#x}: a call of an unknown form: {one.operands}")
            reached = [(int(called[1], 16), (*returns, follows[address]))]
        elif one.name.startswith("RET") and returns:
            reached = [(returns[-1], returns[:-1])]
        for target, stack in reached:
            if target in at and (target, state, stack) not in seen:
                seen.add((target, state, stack))
                left.append((target, state, stack))


def asynchronous_registers(code: Sequence[Instruction]) -> list[str]:
    """Instructions that touch the sums of a product under way, or write the registers that it reads."""
    found: set[str] = set()

    def step(one: Instruction, state: object) -> object:
        assert isinstance(state, Pending)
        if product := product_of(one):
            opened = state.open | {product._replace(ends_group=False)}
            if not product.ends_group:
                return state._replace(open=opened)
            return Pending((*state.groups, opened)[-8:])
        if "DEPBAR" in one.name and "gsb" in one.operands:
            keep = int(one.operands.split(",")[-1].strip(), 16)
            return state._replace(groups=state.groups[-keep:] if keep else ())
        written, read = registers_of(one)
        for under_way in state.all():
            touched = under_way.sums & (written | read) or under_way.left & written
            if touched:
                found.add(f"{one.address:#x} {one.name} touches R{min(touched)} of a product under way")
        return state

    walk(code, Pending(), step)
    return sorted(found)


def fences(code: Sequence[Instruction]) -> list[str]:
    """Products and TMA that may be reached from a store to shared memory without a fence."""
    found: set[str] = set()

    def step(one: Instruction, state: object) -> object:
        if re.match(r"STSM?(\.|$)", one.name):
            return True
        if one.name.startswith("FENCE.VIEW.ASYNC"):
            return False
        if state and re.match(r"HGMMA|UTMASTG|UTMAREDG", one.name):
            found.add(f"{one.address:#x} {one.name} after a store to shared memory that no fence published")
        return state

    walk(code, False, step)
    return sorted(found)


def register_budgets(code: Sequence[Instruction], registers: int, threads: int) -> list[str]:
    """What setmaxnreg gives and takes: no more in all than the block was launched with, and nobody names a
    register beyond what it has. One warpgroup of the block gives, the others take."""
    found = []
    budgets = {}
    for one in code:
        if one.name.startswith("USETMAXREG"):
            budget = int(re.findall(r"0x([0-9a-f]+)", one.operands)[-1], 16)
            takes = "ALLOC" in one.name and "DEALLOC" not in one.name
            budgets[takes] = budget
            most = 0

            def step(other: Instruction, state: object) -> object:
                nonlocal most
                if other.name.startswith("USETMAXREG") and state != other.address:
                    return state
                product = product_of(other)
                written, read = (
                    registers_of(other) if product is None else (set(product.sums | product.left), set())
                )
                most = max(most, *written, *read, 0)
                return state

            walk(code, one.address, step, one.address)
            if most >= budget:
                found.append(f"{one.address:#x} R{most} is used where setmaxnreg leaves {budget} registers")
    if budgets:
        needed = budgets.get(False, registers) * GROUP + budgets.get(True, registers) * (threads - GROUP)
        if needed > registers * threads:
            found.append(
                f"setmaxnreg asks for {needed} registers of {registers * threads}: it would wait for ever"
            )
    return found
