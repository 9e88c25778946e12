"""Which names of torch a program uses, and which are missing here: read from its source, nothing runs.

    python -m warptape.torch.coverage [--json] script.py [more files or folders]

Aliases of imports are followed (`import torch.nn.functional as F`, `from torch import nn`, `sdpa = F.sdpa`).
What is called on an object of unknown type counts where torch.Tensor, nn.Module or Optimizer have such a
name; a question mark says so. The exit code is 1 when a name is missing for certain.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .._missing import find, message, torch_names

# Whose attributes are looked for on objects of unknown type; what Python's own types have says nothing.
_OBJECTS = ("torch.Tensor", "torch.nn.Module", "torch.optim.Optimizer", "torch.autograd.function.FunctionCtx")
_COMMON = {n for kind in (dict, list, str, set, bytes, type(sys.stdin)) for n in dir(kind)}


@dataclass
class Use:
    """One name of torch: whether warptape has it, and where a program uses it.

    Args:
        name: as "torch.nn.Linear".
        here: whether warptape has it.
        sure: whether the use was resolved.
        nearest: a name like it.
        places: file and line.
    """

    name: str
    here: bool
    sure: bool = True  # False: an attribute of an object of unknown type
    nearest: str = ""
    places: list[str] = field(default_factory=list)


class _Names(ast.NodeVisitor):
    """Collects (name, sure, line) of one file."""

    def __init__(self) -> None:
        self.aliases: dict[str, str] = {}
        self.found: list[tuple[str, bool, int]] = []

    def visit_Import(self, node: ast.Import) -> None:
        for item in node.names:
            if item.name.split(".")[0] == "torch":
                self.aliases[item.asname or "torch"] = item.name if item.asname else "torch"
                if item.name != "torch":
                    self.found.append((item.name, True, node.lineno))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or (node.module or "").split(".")[0] != "torch":
            return
        for item in node.names:
            name = f"{node.module}.{item.name}"
            if item.name == "*":
                self._star(str(node.module))
                continue
            self.aliases[item.asname or item.name] = name
            self.found.append((name, True, node.lineno))

    def _star(self, module: str) -> None:
        for name in torch_names().get(module, []):
            if not hasattr(builtins, name):
                self.aliases.setdefault(name, f"{module}.{name}")

    def visit_Assign(self, node: ast.Assign) -> None:
        name = self._dotted(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                if name and name != "torch":
                    self.aliases[target.id] = name
                elif target.id in self.aliases and not name:
                    del self.aliases[target.id]  # it is something else from here on
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        name = self.aliases.get(node.id, "torch")
        if name.count(".") and isinstance(node.ctx, ast.Load):
            self.found.append((name, True, node.lineno))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._dotted(node)
        if name:
            self.found.append((name, True, node.lineno))
            return
        if node.attr not in _COMMON:
            owner = next((o for o in _OBJECTS if node.attr in _known(o)), None)
            if owner:
                self.found.append((f"{owner}.{node.attr}", False, node.lineno))
        self.visit(node.value)

    def _dotted(self, node: ast.AST) -> str:
        """The name under torch that an expression spells out, or nothing."""
        if isinstance(node, ast.Attribute):
            owner = self._dotted(node.value)
            return owner and f"{owner}.{node.attr}"
        return self.aliases.get(node.id, "") if isinstance(node, ast.Name) else ""


_sets: dict[str, set[str]] = {}


def _known(owner: str) -> set[str]:
    if not _sets:
        _sets.update({space: set(names) for space, names in torch_names().items()})
    return _sets[owner]


def _judge(name: str) -> tuple[str, bool, str]:
    """The part of a name that decides, whether it is here, and what is nearest to it."""
    parts = name.split(".")
    for end in range(2, len(parts) + 1):
        path = ".".join(parts[:end])
        try:
            value = find(path)
        except (AttributeError, ImportError):
            owner = "warptape" + ".".join(["", *parts[1 : end - 1]])
            return path, False, message(owner, parts[end - 1]).partition("nearest: ")[2]
        if not isinstance(value, type | type(sys)):  # attributes of functions and values are Python's
            return path, True, ""
    return name, True, ""


def sources(paths: Sequence[str]) -> Iterator[Path]:
    """The Python files among `paths` and in the folders among them.

    Args:
        paths: files and folders.
    """
    for path in map(Path, paths):
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def coverage(paths: Sequence[str]) -> list[Use]:
    """The names of torch that the files use, most used first.

    Raises:
        OSError: a file cannot be read.
        SyntaxError: a file is not Python.
    """
    uses: dict[str, Use] = {}
    judged: dict[str, tuple[str, bool, str]] = {}
    for path in sources(paths):
        names = _Names()
        names.visit(ast.parse(path.read_bytes(), str(path)))
        for name, sure, line in names.found:
            if name not in judged:
                judged[name] = _judge(name)
            decided, here, nearest = judged[name]
            use = uses.setdefault(decided, Use(decided, here, sure, nearest))
            use.sure = use.sure or sure
            use.places.append(f"{path}:{line}")
    return sorted(uses.values(), key=lambda use: (-len(use.places), use.name))


def _report(uses: list[Use]) -> None:
    missing = [use for use in uses if not use.here]
    certain = sum(use.sure for use in missing)
    print(f"{len(uses)} names of torch, {len(uses) - len(missing)} here, {certain} missing", end="")
    print(f", {len(missing) - certain} perhaps" if len(missing) > certain else "")
    for use in missing:
        places = ", ".join(dict.fromkeys(use.places[:3])) + (", .." if len(use.places) > 3 else "")
        near = f"; nearest: {use.nearest}" if use.nearest else ""
        print(f"{len(use.places):5}  {use.name}{'' if use.sure else ' ?'}  {places}{near}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (sys.argv's if None) and return the exit code.

    Args:
        argv: arguments of the command.
    """
    parser = argparse.ArgumentParser(prog="warptape coverage", description=str(__doc__).partition("\n")[0])
    parser.add_argument("paths", nargs="+", metavar="path", help="a Python file, or a folder of them")
    parser.add_argument("--json", action="store_true", help="all names, with every place")
    args = parser.parse_args(argv)
    try:
        uses = coverage(args.paths)
    except (OSError, SyntaxError) as error:
        parser.error(str(error))
    if args.json:
        print(json.dumps([vars(use) for use in uses], indent=1))
    else:
        _report(uses)
    return int(any(use.sure and not use.here for use in uses))


if __name__ == "__main__":
    sys.exit(main())
