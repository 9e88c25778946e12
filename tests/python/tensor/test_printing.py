"""repr() of tensors: texts recorded from PyTorch 2.13 (test_texts_are_pytorch_s compares them anew)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import warptape

TEXTS: dict[str, str] = json.loads(Path(__file__).with_name("printing.json").read_text())


def text_of(torch: Any, expression: str) -> str:
    return repr(eval(expression, {"torch": torch, "inf": float("inf"), "nan": float("nan")}))


@pytest.mark.parametrize("expression", TEXTS)
def test_text(expression: str) -> None:
    assert text_of(warptape, expression) == TEXTS[expression]


@pytest.mark.parity
@pytest.mark.parametrize("expression", TEXTS)
def test_texts_are_pytorch_s(expression: str) -> None:
    assert text_of(pytest.importorskip("torch"), expression) == TEXTS[expression]


def test_print_options_are_put_back() -> None:
    warptape.set_printoptions(precision=2)
    try:
        assert repr(warptape.tensor(1.23456)) == "tensor(1.23)"
    finally:
        warptape.set_printoptions(profile="default")
    assert repr(warptape.tensor(1.23456)) == "tensor(1.2346)"
