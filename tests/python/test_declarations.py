"""Every public function and method on tensors is an op that C++ declares, or one of the few of
warptape/_python_objects.py that need Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warptape as wt
from warptape import _C, _missing
from warptape._python_objects import NOT_DECLARED

ROOT = Path(__file__).resolve().parents[2]
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
    """Public names of a namespace that can be called and are no classes, those made on first use too.

    What is there for PyTorch's names alone (warptape/torch/surface.txt and refused.txt) is no op.
    """
    torch_name = f"torch.{space}".removesuffix(".")
    owner = _missing.find(torch_name)
    for name in sorted({*dir(owner), *_missing.torch_names().get(torch_name, ())}):
        value = getattr(owner, name, None) if name[0] != "_" else None
        if _missing.listed_value(f"{owner.__name__}.{name}") is not None:
            continue
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


# Declarations that repeat the arguments of another one, and why they are written out.
OWN_FACTS = {
    "ctc_loss": "lists of lengths lie nowhere, tensors of lengths may lie on the host",
    "detach_": "the tensor itself loses its history",
    "fake_quantize_per_tensor_affine": "numbers for scale and zero point make it elementwise",
    "histogramdd": "names of results are no part of a form",
    "index_add_": "works along a dim; index_add is composed of it and a copy",
    "index_fill_": "likewise",
    "index_put": "composed of index_put_, which has a batching rule of its own, and a copy",
    "normal": "a tensor of means may be complex",
    "tensordot": "dims in a tensor may lie on the host",
}
# How many declarations are written out: the others are forms (csrc/op/forms.h) or other names of these.
MOST_WRITTEN = 800


def repeated(ops: Iterable[tuple[Any, ...]]) -> set[str]:
    """Names of the ops that are written out although another declaration has their name, but for the _ of
    in-place forms, and their arguments."""
    ops = list(ops)
    names = {op[0] for op in ops}
    seen: dict[str, list[list[tuple[Any, ...]]]] = {}
    found = set()
    for name, _, args, *_, form_of in ops:
        base = seen.setdefault(name.removesuffix("_") if name.removesuffix("_") in names else name, [])
        # Without types: name, keyword-only, any number of them, default.
        arguments = [(arg[0], *arg[4:]) for arg in args]
        if form_of is None and arguments in base:
            found.add(name)
        if form_of is None:
            base.append(arguments)
    return found


def test_no_declaration_is_written_twice() -> None:
    assert repeated(_C._list_ops()) == OWN_FACTS.keys()


def test_few_declarations_are_written_out() -> None:
    written = [op[0] for op in _C._list_ops() if op[-1] is None]
    assert {"add", "where"} <= set(written) and not {"add_", "absolute", "_foreach_exp", "t_copy"} & set(
        written
    )
    assert len(written) <= MOST_WRITTEN, "derive a form of an op by csrc/op/forms.h"


def test_a_planted_repetition_is_found() -> None:
    ops = [op for op in _C._list_ops() if op[0] in ("mul", "mul_")]
    assert len(ops) == 5 and not repeated(ops)
    assert repeated([(*op[:-1], None) for op in ops]) == {"mul", "mul_"}


def declared_at(op: Any) -> tuple[str, int]:
    """File and line of the C++ source, which an op's docstring ends with."""
    file, _, line = op.__doc__.splitlines()[-1].removeprefix("Declared in ").partition(":")
    return file, int(line)


@pytest.mark.parametrize(
    ("path", "name"),
    [("softmax", "softmax"), ("add", "add"), ("linalg.svd", "svd"), ("Tensor.renorm_", "renorm_")],
)
def test_docstring_names_the_line_of_the_declaration(path: str, name: str) -> None:
    """It is the last one of the declaration."""
    space, _, attribute = path.rpartition(".")
    file, line = declared_at(getattr(SPACES[space and space + "."], attribute))
    declaration = (ROOT / file).read_text().splitlines()[:line][-10:]
    assert f'"{name}"' in "\n".join(declaration) and declaration[-1].endswith((";", ","))


@pytest.mark.parametrize("space", SPACES)
def test_every_op_names_a_line_of_the_sources(space: str) -> None:
    """A template that declares several ops is the line of all of them."""
    for op in filter(lambda value: isinstance(value, OP), vars(SPACES[space]).values()):
        file, line = declared_at(op)
        assert (ROOT / file).read_text().splitlines()[line - 1].strip(), op
