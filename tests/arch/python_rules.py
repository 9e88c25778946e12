"""The rules for what modules of the Python package may know of each other. Each is a function from a graph to
its violations: a key and words that tell the place. There are no exceptions.

A ring may know itself and the rings before it. What a ring offers upward it registers below; what it asks of
objects that come from above is a declared type, not an attribute that both sides know.
"""

from __future__ import annotations

import ast
from collections import defaultdict

from arch.python_graph import PACKAGE, Graph, circles, is_private

# Packages and modules by what they may know: their own ring and those above it here. The longest name that
# fits counts; `a.__init__` is the file of package a alone.
RINGS = {
    "names": "version _missing _processor",
    "core": "core backends",
    "autograd": "autograd",
    "devices": "amp cuda",
    "files": "utils serialization",
    "layers": "nn",
    "processes": "multiprocessing",
    "transforms": "func",
    "optimizers": "optim",
    "pictures": "tools.__init__ tools.graph_drawing tools.graph_layout",
    "ops of users": """library testing
        utils._python_dispatch utils._selective_checkpoint utils.checkpoint utils.flop_counter
        utils.module_tracker utils.saved_tensors utils.model_summary utils.cpp_extension
        utils._extension_build utils._op_observer""",
    "compile": "compiler",
    "distributed": "distributed",
    "data": "nn.parallel utils.data",
    "optimizers of ranks": "distributed.optim",
    "models": "models",
    "parallel": "parallel",
    "tools": "tools utils.tensorboard",
    "compression": "ao",
    "inference": "inference",
    "serve": "serve",
    "reinforcement learning": "rl",
    "extras": "extras",
    "torch": "torch",
    "command": "__main__",
}
# Rings that know neither each other: layers and optimizers run in one process, groups know no module.
APART = {("distributed", "layers"), ("distributed", "optimizers")}
Violations = list[tuple[str, str]]


class Rings:
    """Which ring a module lies in."""

    def __init__(self, rings: dict[str, str]) -> None:
        self.names = list(rings)
        self._rank = {member: i for i, text in enumerate(rings.values()) for member in text.split()}

    def rank(self, module: str, is_package: bool = False) -> int | None:
        """The number of its ring; None for a module that is in none."""
        name = short(module)
        if is_package and f"{name}.__init__" in self._rank:
            return self._rank[f"{name}.__init__"]
        while name and name not in self._rank:
            name = name.rpartition(".")[0]
        return self._rank.get(name)


HOUSE = Rings(RINGS)


def readme_imports(package: str) -> list[str]:
    """The packages whose rings are not above that of `package`, as its README.md lists them."""
    ring = HOUSE.rank(package)
    below = []
    for number, (name, text) in enumerate(RINGS.items()):
        apart = ring is not None and (HOUSE.names[ring], name) in APART
        if ring is not None and number <= ring and name != "names" and not apart:
            below += [m.removesuffix(".__init__") for m in text.split() if m != package]
    return list(dict.fromkeys(m for m in below if not m.startswith(f"{package}.") and "._" not in m))


def packages(graph: Graph) -> dict[str, set[str]]:
    """What each package and each group of modules with a ring of its own imports, by the names in RINGS; what
    follows from other imports is left out. What all import, the names' helpers, is not in it."""
    group = {
        member: "utils.*"
        if ring == "ops of users" and "utils" in member
        else member.removesuffix(".__init__")
        for ring, text in RINGS.items()
        for member in text.split()
    }

    def home(module: str) -> str:
        name = short(module)
        if module in graph.packages and f"{name}.__init__" in group:
            return group[f"{name}.__init__"]
        while name and name not in group:
            name = name.rpartition(".")[0]
        return group.get(name, "")

    out: dict[str, set[str]] = {home(module): set() for module in graph.paths}
    for arrow in graph.arrows:
        source, target = home(arrow.source), home(arrow.target)
        if arrow.how != "init" and source != target:
            out[source].add(target)
    for name in ("", *RINGS["names"].split()):
        out.pop(name, None)
    for known in out.values():
        known.intersection_update(out)
    return {
        name: known - set().union(*(reach(out, other) - {other} for other in known))
        for name, known in out.items()
    }


def reach(edges: dict[str, set[str]], start: str) -> set[str]:
    """`start`, and what it knows, over others or not."""
    seen: set[str] = set()
    rest = [start]
    while rest:
        name = rest.pop()
        if name not in seen:
            seen.add(name)
            rest.extend(edges[name])
    return seen


def short(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.")


def pair(source: str, target: str) -> str:
    return f"{short(source)} {short(target)}"


def check_root(graph: Graph) -> Violations:
    """Nobody inside imports the root package: it re-exports what it imports."""
    return [
        (f"root {short(arrow.source)}", f"{graph.place(arrow)}: imports {PACKAGE} itself")
        for arrow in graph.arrows
        if arrow.target == PACKAGE
    ]


def check_direction(graph: Graph) -> Violations:
    """A ring knows no ring above it, and every module lies in a ring."""
    rank = {name: HOUSE.rank(name, name in graph.packages) for name in graph.paths if name != PACKAGE}
    bad = [
        (f"ring {short(name)}", f"{graph.files[name]}: lies in no ring of tests/arch/python_rules.py")
        for name, ring in rank.items()
        if ring is None
    ]
    above = set()
    for arrow in sorted(graph.arrows, key=lambda arrow: arrow.how == "init"):
        ring, other = rank.get(arrow.source), rank.get(arrow.target)
        if ring is None or other is None or (arrow.source, arrow.cause) in above:
            continue
        names = HOUSE.names[ring], HOUSE.names[other]
        if other <= ring and names not in APART:
            continue
        above.add((arrow.source, arrow.cause))
        words = f'"{names[0]}" knows {arrow.target} of "{names[1]}", which is not below it'
        bad.append(
            (f"above {pair(arrow.source, arrow.cause)}", f"{graph.place(arrow)}: {words} ({arrow.how})")
        )
    return bad


def check_circles(graph: Graph) -> Violations:
    """Modules have an order in which each knows only those before it."""
    edges = graph.edges()
    bad = []
    for group in circles(edges):
        inside = set(group)
        places = sorted(
            {
                f"{graph.place(arrow)} knows {arrow.target} ({arrow.how})"
                for arrow in graph.arrows
                if {arrow.source, arrow.target} <= inside
            }
        )
        bad.append(
            (f"circle {pair(group[0], group[-1])}", f"{len(group)} modules in a circle: {', '.join(places)}")
        )
    return bad


def check_private_modules(graph: Graph) -> Violations:
    """A module whose name starts with an underscore is known in the package that has it, nowhere else.

    In the wing of names PyTorch gives modules their names: torch._inductor is as public there as torch.jit.
    """
    bad = []
    for arrow in graph.arrows:
        parts = arrow.target.split(".")
        at = next((i for i, part in enumerate(parts) if is_private(part)), 0)
        if arrow.source.startswith(f"{PACKAGE}.torch.") and arrow.target.startswith(f"{PACKAGE}.torch."):
            continue
        owner = ".".join(parts[:at])
        if at and arrow.how != "init" and not f"{arrow.source}.".startswith(f"{owner}."):
            words = f"imports {arrow.target}, which is private to {owner}"
            bad.append((f"private {pair(arrow.source, arrow.target)}", f"{graph.place(arrow)}: {words}"))
    return bad


def check_attributes(graph: Graph) -> Violations:
    """No package reads a private attribute that another one sets, nor asks by getattr() or hasattr() for what
    only packages above it set: such an agreement is a declared type (a typing.Protocol)."""
    setters: dict[str, set[str]] = defaultdict(set)
    own: dict[str, set[str]] = defaultdict(set)
    for access in graph.accesses:
        if access.how == "set":
            setters[access.name].add(graph.package_of(access.module))
        if access.how in ("set", "own"):
            own[access.name].add(graph.package_of(access.module))
    bad = []
    for access in graph.accesses:
        package = graph.package_of(access.module)
        others = setters[access.name] - {PACKAGE}
        if access.how not in ("read", "by name") or not others or package in own[access.name] | {PACKAGE}:
            continue
        if access.name in graph.declared or access.name.startswith("__"):
            continue
        ring = HOUSE.rank(package) or 0
        private = is_private(access.name)
        if private or (access.how == "by name" and all((HOUSE.rank(other) or 0) > ring for other in others)):
            words = f"reads {access.name}, which {', '.join(sorted(map(short, others)))} sets"
            key = f"attribute {short(package)} {access.name}"
            bad.append((key, f"{graph.files[access.module]}:{access.line}: {words}"))
    return bad


def check_late_names(graph: Graph) -> Violations:
    """The names of a package that are imported when first asked for (`_LATE`) are those that its imports for
    type checkers name: these are the arrows that the other rules see."""
    bad = []
    for module in sorted(graph.packages):
        late, typed = late_names(ast.parse(graph.paths[module].read_text()))
        for name in sorted(late ^ typed) if late else ():
            words = f"{name} is not in both _LATE and the imports under TYPE_CHECKING"
            bad.append((f"late {short(module)} {name}", f"{graph.files[module]}: {words}"))
    return bad


def late_names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """module.name of what `_LATE` lists, and of what modules of the package have for type checkers."""
    late: set[str] = set()
    typed: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LATE":
            table: dict[str, str] = ast.literal_eval(node.value)
            late = {f"{module}.{name}" for module, names in table.items() for name in names.split()}
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in node.body:
                if isinstance(child, ast.ImportFrom) and child.level == 1 and child.module:
                    typed |= {f"{child.module}.{alias.name}" for alias in child.names}
    return late, typed


def check_extension(graph: Graph) -> Violations:
    """The extension names modules by where they lie: it looks for some among those that are loaded."""
    bad = []
    for relative, line, name in graph.named_in_cpp:
        home = graph.module_of(name)
        if home and not f"{name}.".startswith(f"{home}."):
            words = f"names {name} by its public name; it is {home}"
            bad.append((f"extension {short(name)}", f"{relative}:{line}: {words}"))
    return bad


CHECKS = (
    check_root,
    check_direction,
    check_circles,
    check_private_modules,
    check_attributes,
    check_late_names,
    check_extension,
)
