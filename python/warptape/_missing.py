"""What to say of PyTorch's names that are not here: which it is, and the nearest one that is."""

from __future__ import annotations

import importlib
import importlib.util
import opcode
import os
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

_IMPORT_FROM = opcode.opmap["IMPORT_FROM"]
_ELSEWHERE = ("", ".nn.functional", ".nn", ".linalg", ".Tensor", ".utils", ".nn.utils")


def torch_names() -> dict[str, list[str]]:
    """PyTorch's public names by namespace: `{"torch.nn": ["AdaptiveAvgPool1d", ..], "torch.Tensor": ..}`."""
    with open(os.path.join(os.path.dirname(__file__), "torch", "names.txt")) as file:
        return {space: names.split() for space, _, names in (line.partition(": ") for line in file)}


def find(path: str) -> Any:
    """What a dotted name of torch stands for here. AttributeError or ImportError where there is nothing."""
    found: Any = sys.modules["warptape"]
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    return found


def message(owner: str, name: str) -> str:
    """That `owner`, a module or class of warptape, has no `name`; with the nearest that there is."""
    import difflib  # not where every program waits for it

    space = "torch" + owner.removeprefix("warptape")
    near = ""
    for path in (f"torch{place}.{name}" for place in _ELSEWHERE if f"torch{place}" != space):
        try:
            find(path)
        except (AttributeError, ImportError):
            continue
        near = path
        break
    else:
        there = find(space)
        close = difflib.get_close_matches(
            name, [n for n in {*dir(there), *vars(type(there))} if n[0] != "_" and hasattr(there, n)], 1
        )
        near = f"{space}.{close[0]}" if close else ""
    return f"warptape has no {space}.{name} yet" + (f"; nearest: {near}" if near else "")


class _Missing(AttributeError):
    """An AttributeError that is worded when it is read: hasattr() must stay cheap."""

    def __init__(self, owner: str, name: str) -> None:
        super().__init__(obj=None)  # else Python appends a guess of its own
        self._owner, self._name = owner, name

    def __str__(self) -> str:
        return message(self._owner, self._name)

    def __reduce__(self) -> tuple[Any, ...]:
        return AttributeError, (str(self),)


_Missing.__module__, _Missing.__qualname__ = "builtins", "AttributeError"  # as tracebacks show it


def _imports_from(frame: FrameType) -> bool:
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM


def lookup(owner: str, **computed: Callable[[], Any]) -> Callable[[str], Any]:
    """The `__getattr__` of a module: imports its submodules on first use and says what is missing.

    `computed` has what else to answer, by name: the value is what the function returns.
    """

    def __getattr__(name: str) -> Any:
        if name in computed:
            return computed[name]()
        if not name.startswith("__") and hasattr(sys.modules[owner], "__path__"):
            if importlib.util.find_spec(f"{owner}.{name}") is not None:
                return importlib.import_module(f"{owner}.{name}")
        if not name.startswith("__") and _imports_from(sys._getframe(1)):
            raise ImportError(message(owner, name), name=owner)
        raise _Missing(owner, name)

    return __getattr__


_said: set[str] = set()


def say_once(text: str) -> None:
    """Warns of something that has no effect here, once in a process."""
    if text not in _said:
        _said.add(text)
        warnings.warn(text, stacklevel=3)


class _Absent:
    """Stands in a class for an attribute that PyTorch's has: a `__getattr__` would slow down all others."""

    def __init__(self, owner: str, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: Any, owner: type) -> Any:
        raise _Missing(self._owner, self._name)


def mark_absent(cls: type, path: str) -> None:
    """Gives `cls`, which torch has as `path`, words for the attributes that it lacks."""
    for name in torch_names()[path]:
        if not hasattr(cls, name):
            setattr(cls, name, _Absent("warptape" + path.removeprefix("torch"), name))
