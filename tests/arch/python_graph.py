"""What modules of a package know of each other, wherever it hides: imports at the top, in functions and for
type checkers, modules that a string names, the root package and what is reached through it, the
`__init__` of packages that an import runs, and attributes that one module sets and another reads.

Nothing is imported: the files are parsed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = "warptape"
WING = "torch.names"  # modules that are there for PyTorch's names alone
IMPORTERS = ("__import__", "import_module", "find_spec")  # take a module's name as a string
READERS = ("getattr", "hasattr")
NAMED_TUPLE = ("_fields", "_replace", "_asdict", "_make", "_field_defaults")


class Arrow(NamedTuple):
    """A module that knows another, and how: "top", "function", "typing", "string", "through" (an attribute of
    a package that was imported) or "init" (an `__init__` that runs before `cause`, which was imported)."""

    source: str
    target: str
    how: str
    line: int
    cause: str


class Access(NamedTuple):
    """An attribute in a module: "set" or defined there, "own" (read of self), "read", or read "by name" with
    getattr or hasattr, of an object that may not have it."""

    module: str
    name: str
    how: str
    line: int


def chain(node: ast.expr) -> list[str]:
    """["a", "b", "c"] of a.b.c; empty for what does not start with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def rooms_of(path: Path) -> dict[str, str]:
    """The table of public names of modules that lie elsewhere in the package."""
    for node in ast.parse(path.read_text()).body if path.exists() else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS":
            return dict(ast.literal_eval(node.value))
    return {}


def names_bound(root: Path) -> Iterator[str]:
    """Names of methods and attributes that the extension gives its classes, private ones among them, which
    its stub does not have: `.def("_abort", ..)` and rows of tables, `{"_declarations", ..}`."""
    for path in sorted((root / "csrc" / "bindings").rglob("*.cpp")):
        yield from re.findall(r'(?:\.def\w*\(|^\s*\{)\s*"(\w+)",', path.read_text(), re.M)


def names_of_protocols(tree: ast.Module) -> Iterator[str]:
    """What the classes of a module that are a typing.Protocol ask of others."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
            for child in node.body:
                if isinstance(child, ast.FunctionDef):
                    yield child.name
                elif isinstance(child, ast.AnnAssign):
                    yield ast.unparse(child.target)


def names_in_cpp(root: Path) -> Iterator[tuple[str, int, str]]:
    """(file, line, name) of what strings in C++ name of the package."""
    for path in sorted((root / "csrc").rglob("*.cpp")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            for name in re.findall(rf'"({PACKAGE}(?:\.\w+)+)"', line):
                yield path.relative_to(root).as_posix(), number, name


class Graph:
    """The package in the folder python/ of a source tree."""

    def __init__(self, root: Path) -> None:
        self.paths: dict[str, Path] = {}
        self.packages: set[str] = set()
        folder = root / "python"
        for path in sorted((folder / PACKAGE).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.paths[name] = path
            if parts[-1] == "__init__":
                self.packages.add(name)
        self.files = {name: path.relative_to(root).as_posix() for name, path in self.paths.items()}
        self.rooms = rooms_of(folder / PACKAGE / "_missing.py")
        for name in self.paths:  # PyTorch's names have their public names from where they lie
            if name.startswith(f"{PACKAGE}.{WING}."):
                public = name.removeprefix(f"{PACKAGE}.{WING}.")
                if f"{PACKAGE}.{public}" not in self.paths and public not in self.rooms:
                    self.rooms[public] = f"{WING}.{public}"
        self.extensions = {f"{PACKAGE}._C"}  # modules without a .py file: below all others
        names, stub = folder / PACKAGE / "torch" / "names.txt", folder / PACKAGE / "_C.pyi"
        # Names that PyTorch, the extension or a protocol in core has: any package may use them.
        self.declared = set(NAMED_TUPLE)
        self.declared.update(re.findall(r"\w+", names.read_text()) if names.exists() else ())
        self.declared.update(
            re.findall(r"^ *(?:def )?(\w+)[:(]", stub.read_text(), re.M) if stub.exists() else ()
        )
        self.declared.update(names_bound(root))
        self.named_in_cpp = list(names_in_cpp(root))
        self.arrows: list[Arrow] = []
        self.accesses: list[Access] = []
        self.lines: dict[str, int] = {}
        for name, path in self.paths.items():
            text = path.read_text()
            self.lines[name] = len(text.splitlines())
            tree = ast.parse(text)
            if f"{name}.".startswith(f"{PACKAGE}.core."):
                self.declared.update(names_of_protocols(tree))
            reader = _Reader(self, name)
            reader.visit(tree)
            self.arrows += reader.arrows()
            self.accesses += reader.accesses

    def module_of(self, name: str) -> str:
        """The longest module that a dotted name starts with; empty where it is none of the package."""
        for public, room in self.rooms.items():
            if f"{name}.".startswith(f"{PACKAGE}.{public}."):
                name = f"{PACKAGE}.{room}{name.removeprefix(f'{PACKAGE}.{public}')}"
        while name and name not in self.paths and name not in self.extensions:
            name = name.rpartition(".")[0]
        return name

    def package_of(self, module: str) -> str:
        """The package of a module, below the root: nn of nn.modules.linear; the root's files are each one."""
        return ".".join(module.split(".")[:2])

    def edges(self) -> dict[str, set[str]]:
        """For each module those that it knows."""
        out: dict[str, set[str]] = {name: set() for name in self.paths}
        for arrow in self.arrows:
            out[arrow.source].add(arrow.target)
        return out

    def place(self, arrow: Arrow) -> str:
        return f"{self.files[arrow.source]}:{arrow.line}"


class _Reader(ast.NodeVisitor):
    """Collects what one module knows."""

    def __init__(self, graph: Graph, module: str) -> None:
        self.graph, self.module = graph, module
        self.package = module if module in graph.packages else module.rpartition(".")[0]
        self.found: list[tuple[str, str, int]] = []  # dotted name, how, line
        self.bound: dict[str, str] = {}  # local names of modules of the package
        self.chains: list[tuple[list[str], str, int]] = []
        self.accesses: list[Access] = []
        self.how = "top"

    # ---- what is written ----

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._found(alias.name, node.lineno)
            if alias.name.split(".")[0] == PACKAGE:
                self.bound[alias.asname or PACKAGE] = alias.name if alias.asname else PACKAGE

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self.package.split(".")
        base = base[: len(base) - node.level + 1] if node.level else []
        stem = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            name = f"{stem}.{alias.name}"
            self._found(name, node.lineno)
            if self.graph.module_of(name) == name:
                self.bound[alias.asname or alias.name] = name

    def visit_Call(self, node: ast.Call) -> None:
        names = chain(node.func)
        first = node.args[0] if node.args else None
        text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
        if names and (names[-1] in IMPORTERS or names[-2:] == ["modules", "get"]) and text:
            self._string(text, node)
        if names and names[-1] in (*READERS, "setattr") and len(node.args) > 1:
            self._by_name(node, names[-1])
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if chain(node.value) in (["sys", "modules"], ["_sys", "modules"]) and isinstance(
            node.slice, ast.Constant
        ):
            self._string(str(node.slice.value), node)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        names = chain(node)
        if names:
            self.chains.append((names, self._how("through"), node.lineno))
        if not isinstance(node.ctx, ast.Load):
            self._access(node.attr, "set", node)
        elif names[:1] in (["self"], ["cls"]) and len(names) == 2:
            self._access(node.attr, "own", node)
        elif not names or (names[0] not in self.bound and "_C" not in names):  # not of a module
            self._access(node.attr, "read", node)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            self._inside("typing", node.body)
            self._inside(self.how, node.orelse)
        else:
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._access(node.name, "set", node)
        before, self.how = self.how, "typing" if self.how == "typing" else "function"
        self.generic_visit(node)
        self.how = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        before, self.how = self.how, "typing" if self.how == "typing" else "function"
        self.generic_visit(node)
        self.how = before

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for child in node.body:
            for target in getattr(child, "targets", [getattr(child, "target", None)]):
                if isinstance(target, ast.Name):
                    self._access(target.id, "set", child)
                    if target.id == "__slots__":
                        for slot in ast.walk(child):
                            if isinstance(slot, ast.Constant) and isinstance(slot.value, str):
                                self._access(slot.value, "set", child)
        self.generic_visit(node)

    # ---- what it means ----

    def _how(self, how: str) -> str:
        return self.how if self.how == "typing" else how

    def _inside(self, how: str, body: list[ast.stmt]) -> None:
        before, self.how = self.how, how
        for child in body:
            self.visit(child)
        self.how = before

    def _found(self, name: str, line: int) -> None:
        self.found.append((name, self.how, line))

    def _string(self, text: str, node: ast.Call | ast.Subscript) -> None:
        if text.startswith("."):
            level = len(text) - len(text.lstrip("."))
            base = self.package.split(".")
            text = ".".join([*base[: len(base) - level + 1], text.lstrip(".")]).rstrip(".")
        if text.split(".")[0] == PACKAGE:
            self.found.append((text, "string", node.lineno))

    def _by_name(self, node: ast.Call, function: str) -> None:
        name = node.args[1]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            self._access(name.value, "set" if function == "setattr" else "by name", node)

    def _access(self, name: str, how: str, node: ast.AST) -> None:
        self.accesses.append(Access(self.module, name, how, getattr(node, "lineno", 0)))

    def arrows(self) -> Iterator[Arrow]:
        """The imports, and attributes of packages that are modules of theirs."""
        found = list(self.found)
        for names, how, line in self.chains:
            if names[0] in self.bound:
                found.append((".".join([self.bound[names[0]], *names[1:]]), how, line))
        for name, how, line in found:
            target = self.graph.module_of(name)
            if not target or target in self.graph.extensions or target == self.module:
                continue
            yield Arrow(self.module, target, how, line, target)
            above = target.rpartition(".")[0]
            while above and above != PACKAGE:
                if above != self.module and not f"{self.module}.".startswith(f"{above}."):
                    yield Arrow(self.module, above, "init", line, target)
                above = above.rpartition(".")[0]


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules of which each knows, over others or not, every other; largest first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    out = []
    for start in edges:
        if start in index:
            continue
        work = [(start, iter(sorted(edges[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    group, stack[at:] = stack[at:], []
                    on_stack.difference_update(group)
                    if len(group) > 1:
                        out.append(sorted(group))
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(sorted(edges[following]))))
            elif following in on_stack:
                low[node] = min(low[node], index[following])
    return sorted(out, key=len, reverse=True)
