"""What help() and editors ask of an op at run time: its signature, and the examples in its docstring.

The examples lie in examples/*.txt. A line `# torch.softmax, torch.Tensor.softmax` names the ops of the
example that follows, up to the next such line. tests/python/names/test_docstrings.py runs them.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import math
import os
from typing import Any

from .registry import offered

# Of OpFlag in csrc/op/op.h.
_OUT = 8
_PLACES = {1: "", 4: "nn.functional.", 16: "linalg.", 64: "special.", 128: "fft."}


def default_value(type_name: str, text: str) -> Any:
    """The default that a declaration gives an argument of a type; None where it has none.

    Args:
        type_name: as "float".
        text: of the declaration.
    """
    value = eval(text, {"torch": offered("root"), "inf": math.inf}) if text else None
    return float(value) if type_name == "float" and value is not None else value


def signature(op: Any) -> inspect.Signature:
    """The parameters of an op's first overload; a method's first one is `self`.

    Args:
        op: of the namespace, or a method.
    """
    _, flags, arguments, *_ = op._declarations[0]
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    arguments_of = []
    for i, (name, type_name, _, _, keyword_only, var_args, default) in enumerate(arguments):
        if var_args:
            arguments_of.append(inspect.Parameter(name, inspect.Parameter.VAR_POSITIONAL))
            kind = inspect.Parameter.KEYWORD_ONLY
            continue
        if keyword_only:
            kind = inspect.Parameter.KEYWORD_ONLY
        value: Any = None if type_name == "torch.Generator" else inspect.Parameter.empty
        if default:
            value = default_value(type_name, default)
        name = "self" if op._is_method and i == 0 else name + "_" * keyword.iskeyword(name)
        arguments_of.append(inspect.Parameter(name, kind, default=value))
    if flags & _OUT:
        arguments_of.append(inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None))
    return inspect.Signature(arguments_of)


@functools.cache
def examples() -> dict[str, str]:
    """The examples by the dotted names of torch that they are for."""
    texts: dict[str, str] = {}
    folder = os.path.join(os.path.dirname(__file__), "examples")
    for file in sorted(os.listdir(folder)):
        with open(os.path.join(folder, file), encoding="utf-8") as text:
            parts = ("\n" + text.read()).split("\n# ")[1:]
        for names, _, example in (part.partition("\n") for part in parts):
            texts.update(dict.fromkeys(names.split(", "), example.strip("\n")))
    return texts


def with_example(op: Any, text: str, place: str) -> str:
    """The docstring of an op: what its declaration says, an example where there is one, and the C++ source.

    Args:
        op: of the namespace, or a method.
        text: of its declaration.
        place: file and line of its declaration.
    """
    flags = op._declarations[0][1]
    spaces = ["Tensor."] if op._is_method else [space for bit, space in _PLACES.items() if flags & bit]
    texts = (examples().get(f"torch.{space}{op.__name__}") for space in spaces)
    if example := next(filter(None, texts), None):
        text += "\n\nExample::\n\n    " + example.replace("\n", "\n    ")
    return f"{text}\n\nDeclared in {place}\n"
