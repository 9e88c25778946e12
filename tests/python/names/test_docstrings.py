"""Docstrings of public names: each has one, and what its examples print is what is printed."""

from __future__ import annotations

import doctest
import inspect
import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any

import pytest
import warptape as torch
from warptape import _op_docs
from warptape._missing import find

# ruff: noqa: SIM905
MODULES = (
    "torch nn nn.functional nn.init nn.utils nn.utils.rnn linalg fft special masked signal.windows "
    "autograd amp optim optim.lr_scheduler utils.data utils.checkpoint distributions random func "
    "cuda backends distributed jit fx export serialization sparse utils utils.flop_counter autograd.graph "
    "profiler._roofline profiler._memory"
).split()


def failures(name: str, text: str) -> str:
    """What doctest says of the examples in a text; empty where all print what is written."""
    scope = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    test = doctest.DocTestParser().get_doctest(text, scope, name, None, None)
    report = io.StringIO()
    with redirect_stdout(report):
        doctest.DocTestRunner(verbose=False).run(test)
    return report.getvalue()


def places() -> Iterator[tuple[str, Any]]:
    for name in MODULES:
        yield ("torch", torch) if name == "torch" else (f"torch.{name}", find(f"torch.{name}"))
    yield "torch.Tensor", torch.Tensor


def public() -> Iterator[tuple[str, Any]]:
    """Public names of these modules and of Tensor, and public methods of the classes defined in them."""
    for place, holder in places():
        for name in dir(holder):
            value = inspect.getattr_static(holder, name)
            home = getattr(value, "__module__", None) or "warptape"
            if name[0] == "_" or isinstance(value, ModuleType) or not home.startswith("warptape"):
                continue
            if callable(value) or inspect.isdatadescriptor(value):
                yield f"{place}.{name}", value


def methods(cls: type) -> Iterator[Any]:
    """What a class has of its own or from bases in warptape."""
    for base in cls.__mro__:
        if base.__module__.startswith("warptape"):
            yield from (value for name, value in vars(base).items() if name[0] != "_" and callable(value))


@pytest.mark.parametrize("name", _op_docs.examples())
def test_example_of_an_op(name: str) -> None:
    op = find(name)
    text = _op_docs.examples()[name]
    assert "Example::" in op.__doc__ and text.splitlines()[0] in op.__doc__
    assert failures(name, text) == ""


def test_examples_in_docstrings() -> None:
    holders = [value for _, value in public() if not hasattr(value, "_declarations")]
    holders += [member for value in holders if isinstance(value, type) for member in methods(value)]
    texts = {text for value in holders if ">>>" in (text := inspect.getdoc(value) or "")}
    assert len(texts) > 100
    assert [report for text in texts if (report := failures("docstring", text))] == []


def test_a_wrong_example_is_found() -> None:
    assert "Expected:\n    3" in failures("planted", ">>> torch.tensor(2).item()\n3\n")


def test_public_names_have_docstrings() -> None:
    bare = sorted({name for name, value in public() if not inspect.getdoc(value)})
    assert bare == []
