"""PyTorch's names beside the house's: tables tell where they lie, or why a use of them fails.

surface.txt and refused.txt have lines of four kinds. A namespace that no folder has becomes a module:

    ? the reason of the refusals that follow
    torch.a.b: Name function() number=3           refused at use, but for values, which are as they stand
    torch.a.b = torch._home.part: name other=own  the house's: `other` is what torch._home.part calls `own`
    torch.a.b = testing                           a module under a second name

Nothing is read before a program asks for a name that no module of the house has.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

from .._missing import Alias, install_getattr, module_name, unusable


class _Entry(NamedTuple):
    """What a name stands for: it is found elsewhere, is a value, or is refused."""

    path: str  # as PyTorch has it
    home: str = ""  # of what is found elsewhere, without "warptape."
    text: str = ""  # of a value, as Python writes it
    reason: str = ""
    is_function: bool = False


def _lines() -> Iterator[tuple[str, str, str, list[str]]]:
    """Of each line of the table: the namespace, where it lies, the reason, the names."""
    reason = ""
    for name in ("surface.txt", "refused.txt"):
        with open(os.path.join(os.path.dirname(__file__), name)) as file:
            for line in file:
                line = line.partition("#")[0].strip()
                if line.startswith("?"):
                    reason = line[1:].strip()
                elif line:
                    left, _, names = line.partition(":")
                    space, _, home = left.partition("=")
                    yield space.strip(), home.strip(), reason, names.split()


@functools.cache
def _table() -> dict[str, _Entry]:
    """By the name that an object has in this package."""
    entries: dict[str, _Entry] = {}
    for space, home, reason, names in _lines():
        for name in names:
            shown, _, told = name.partition("=")
            bare = shown.removesuffix("()")
            path, key = f"{space}.{bare}", f"{module_name(space)}.{bare}"
            if home:
                entries[key] = _Entry(path, home=f"{home}.{told or bare}")
            elif told:
                entries[key] = _Entry(path, text=told)
            else:
                entries[key] = _Entry(path, reason=reason, is_function=shown != bare)
    return entries


@functools.cache
def _aliases() -> dict[str, str]:
    """Modules under a second name: by that name the module that they are."""
    return {module_name(s): f"warptape.{home}" for s, home, _, names in _lines() if home and not names}


@functools.cache
def _modules() -> dict[str, str]:
    """The modules that the table alone has, by name: why they are empty but for what it lists."""
    modules: dict[str, str] = {}
    for space, home, reason, names in _lines():
        if home and not names:
            continue
        parts = module_name(space).split(".")
        for end in range(2, len(parts) + 1):
            modules.setdefault(".".join(parts[:end]), reason)
    return modules


def has_module(name: str) -> bool:
    """Whether the table makes a module of this name of the package."""
    return name in _aliases() or name in _modules()


def has_modules_below(name: str) -> bool:
    """Whether the table makes modules below one of this name."""
    return any(key.startswith(f"{name}.") for key in (*_aliases(), *_modules()))


def why(path: str) -> str | None:
    """Why the use of a name of torch is refused; None for one that is not."""
    space, _, name = path.rpartition(".")
    entry = _table().get(f"{module_name(space)}.{name}")
    return entry.reason if entry and entry.reason else None


def value(key: str) -> Any:
    """What a name of a module of this package stands for. KeyError where the table does not have it."""
    entry = _table().get(key)
    if entry is None:
        if has_module(key):
            return importlib.import_module(key)
        raise KeyError(key)
    if entry.text:
        return ast.literal_eval(entry.text)
    if entry.home:
        return _found(f"warptape.{entry.home}")
    if entry.is_function:
        return _refusing(entry.path, entry.reason)
    stub = unusable(entry.path, entry.reason)
    stub.__module__ = entry.path.rpartition(".")[0]
    return stub


def _found(path: str) -> Any:
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        home = ".".join(parts[:end])
        try:
            value: Any = importlib.import_module(home)
        except ModuleNotFoundError as error:
            if error.name != home:  # it is there, and what it needs is not
                raise
            continue
        return functools.reduce(getattr, parts[end:], value)
    raise AssertionError(path)


def _refusing(path: str, reason: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{path}: {reason}")

    home, _, refuse.__name__ = path.rpartition(".")
    refuse.__qualname__, refuse.__module__ = refuse.__name__, home
    refuse.__doc__ = f"Not supported: {reason}."
    return refuse


class _Loader(Loader):
    """Makes a module whose names the table has."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__doc__ = f"Names of {name.replace('warptape', 'torch', 1)}: {_modules()[name]}."
        install_getattr(name)


class Finder(MetaPathFinder):
    """Finds the modules that no folder of the package has, after all others have looked."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module of the table."""
        if fullname in _aliases():
            loader: Any = Alias(_aliases()[fullname])
            return ModuleSpec(fullname, loader, is_package=True)
        if fullname not in _modules():
            return None
        return ModuleSpec(fullname, _Loader(), origin="warptape.torch", is_package=True)
