"""Type promotion is PyTorch's: every dtype with every dtype, as tensors with dimensions, without, and as
Python numbers on either side. promotion.json was recorded from PyTorch by record.py."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from promotion import cases

HERE = Path(__file__).resolve().parent
GOLDEN: dict[str, dict[str, str]] = json.loads((HERE / "promotion.json").read_text())["table"]


LEFT = [(op, left) for op in cases.OPS for left in GOLDEN[op]]


@pytest.mark.parametrize(("op", "left"), LEFT, ids=[f"{op}-{left.replace(' ', '-')}" for op, left in LEFT])
def test_promotion(rt: ModuleType, op: str, left: str) -> None:
    todo = [case for case in cases.operands() if " ".join(case[:2]) == left]
    want = GOLDEN[op][left].split()
    assert len(todo) == len(want)
    got = [cases.outcome(rt, op, case) for case in todo]
    wrong = [f"{case[2:]}: expected {w}, got {g}" for case, w, g in zip(todo, want, got) if w != g]
    assert not wrong, f"{op} with {left} on the left: " + "; ".join(wrong)


@pytest.mark.parametrize("left", list(GOLDEN["result_type"]))
def test_promote_types(rt: ModuleType, left: str) -> None:
    want = GOLDEN["result_type"][left].split()
    found = [rt.promote_types(getattr(rt, left), getattr(rt, right)) for right in cases.DTYPES]
    assert [str(one).rpartition(".")[2] for one in found] == want


def test_result_type_of_mixed_operands(rt: ModuleType) -> None:
    for case in cases.operands():
        a, b = cases.operand(rt, *case[:2]), cases.operand(rt, *case[2:])
        left = " ".join(case[:2])
        place = [c[2:] for c in cases.operands() if " ".join(c[:2]) == left].index(case[2:])
        want = GOLDEN["add"][left].split()[place]
        assert str(rt.result_type(a, b)).rpartition(".")[2] == want, case


def test_values_survive_promotion(rt: ModuleType) -> None:
    assert (rt.tensor([200], dtype=rt.uint8) + rt.tensor([-1], dtype=rt.int8)).tolist() == [199]
    assert (rt.tensor([2**40]) + rt.tensor([1], dtype=rt.int32)).tolist() == [2**40 + 1]
    assert (rt.tensor([True]) + True).tolist() == [True]
    assert (rt.tensor([3]) / 2).tolist() == [1.5]
    assert (rt.tensor([255], dtype=rt.uint8) + 1).tolist() == [0]
