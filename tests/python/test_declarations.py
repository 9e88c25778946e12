"""Every public function and method on tensors is an op that C++ declares, or one of the few of
warptape/_python_objects.py that need Python objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import warptape as wt
from warptape import _C, _missing
from warptape._python_objects import NOT_DECLARED

# Namespaces, and where the bindings put the ops of each.
SPACES = {
    "": _C._functions,
    "nn.functional.": _C._nn,
    "linalg.": _C._linalg,
    "special.": _C._special,
    "fft.": _C._fft,
    "signal.windows.": _C._windows,
    "masked.": _C._masked,
    "Tensor.": _C.TensorBase,
}
OP = type(_C._functions.add)
LISTED = [path for paths in NOT_DECLARED.values() for path in paths.split()]


def functions(space: str) -> Iterator[tuple[str, Any]]:
    """Public names of a namespace that can be called and are no classes, those made on first use too."""
    torch_name = f"torch.{space}".removesuffix(".")
    owner = _missing.find(torch_name)
    for name in sorted({*dir(owner), *_missing.torch_names().get(torch_name, ())}):
        value = getattr(owner, name, None) if name[0] != "_" else None
        if callable(value) and not isinstance(value, type):
            yield name, value


def undeclared(space: str) -> list[str]:
    """The functions that are not the op of this name and place."""
    ops = vars(SPACES[space])
    return [
        space + name
        for name, value in functions(space)
        if not isinstance(value, OP) or value is not ops.get(name)
    ]


@pytest.mark.parametrize("space", SPACES)
def test_functions_are_declared(space: str) -> None:
    found = dict(functions(space))
    assert any(isinstance(value, OP) for value in found.values()), "no ops were found"
    assert [path for path in undeclared(space) if path not in LISTED] == []


def test_the_list_is_needed() -> None:
    assert sorted(LISTED) == sorted(path for space in SPACES for path in undeclared(space))


@pytest.mark.parametrize("space", SPACES)
def test_planted_function_is_found(space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = _missing.find(f"torch.{space}".removesuffix("."))
    before = undeclared(space)
    monkeypatch.setattr(owner, "planted", lambda input: input + 1, raising=False)
    monkeypatch.setattr(owner, "renamed", wt.add, raising=False)
    assert set(undeclared(space)) - set(before) == {f"{space}planted", f"{space}renamed"}
