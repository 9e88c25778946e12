"""The rules for what modules of the Python package may know of each other. Each is a function from a graph to
its violations: a key, as it stands in the list of debts (python_debts.txt), and words that tell the place.

A ring may know itself and the rings before it. What a ring offers upward it registers below; what it asks of
objects that come from above is a declared type, not an attribute that both sides know.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from arch.python_graph import PACKAGE, Graph, circles, is_private

# Packages and modules by what they may know: their own ring and those above it here. The longest name that
# fits counts; `a.__init__` is the file of package a alone.
RINGS = {
    "names": "version torch_version _missing",
    "core": """core _op_docs _interchange _legacy storage _tensor _functions types overrides functional random
        linalg fft special return_types masked futures _logging backends __future__ __config__ signal""",
    "autograd": "autograd",
    "devices": "amp cuda _dispatch _conditions _streams accelerator cpu mps xpu",
    "files": "utils serialization hub _lobpcg",
    "layers": "nn",
    "processes": "multiprocessing",
    "transforms": "func functorch _functorch_c",
    "optimizers": "optim",
    "pictures": "graph_drawing _graph_layout",
    "ops of users": """_ops library _custom_ops _op_schema _opcheck _builtin_ops _aten testing _utils
        utils._python_dispatch utils._selective_checkpoint utils.checkpoint utils.flop_counter
        utils.module_tracker utils._summary utils.cpp_extension utils._extension_build utils._op_observer""",
    "compile": "compiler _dynamo _graphs _control_flow _higher_order_ops _inductor export jit fx onnx",
    "distributed": "distributed",
    "data": "nn.parallel utils.data",
    "models": "models",
    "parallel": "parallel",
    "names over parallel": """distributed.fsdp distributed.tensor distributed.pipelining
        distributed._composable distributed.optim distributed.nn""",
    "tools": "profiler doctor utils.tensorboard utils.collect_env",
    "compression": "ao",
    "inference": "inference",
    "serve": "serve",
    "extras": "extras",
    "torch": "torch",
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


def check_circles(graph: Graph, forgiven: Collection[str] = ()) -> Violations:
    """Modules have an order in which each knows only those before it, but for the arrows of debts."""
    without = dropped(graph, forgiven)
    edges = graph.edges(without)
    bad = []
    for group in circles(edges):
        inside = set(group)
        places = sorted(
            {
                f"{graph.place(arrow)} knows {arrow.target} ({arrow.how})"
                for arrow in graph.arrows
                if {arrow.source, arrow.target} <= inside and (arrow.source, arrow.cause) not in without
            }
        )
        bad.append(
            (f"circle {pair(group[0], group[-1])}", f"{len(group)} modules in a circle: {', '.join(places)}")
        )
    return bad


def dropped(graph: Graph, debts: Collection[str]) -> set[tuple[str, str]]:
    """The arrows that debts stand for."""
    out = set()
    for debt in debts:
        kind, source, *rest = debt.split()
        if kind in ("above", "circle"):
            out.add((f"{PACKAGE}.{source}", f"{PACKAGE}.{rest[0]}"))
    return out | {(arrow.source, PACKAGE) for arrow in graph.arrows if arrow.target == PACKAGE}


def needless_circles(graph: Graph, debts: Collection[str]) -> list[str]:
    """Entries for circles without which there is none more, as long as the other entries stand."""
    out: list[str] = []
    for debt in debts:
        if debt.startswith("circle "):
            _, source, target = debt.split()
            edges = graph.edges(dropped(graph, [d for d in debts if d != debt and d not in out]))
            ends = (f"{PACKAGE}.{source}", f"{PACKAGE}.{target}")
            ran = {arrow.target for arrow in graph.arrows if (arrow.source, arrow.cause) == ends}
            if not any(ends[0] in reach(edges, start) for start in ran):
                out.append(debt)
    return out


def reach(edges: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    rest = [start]
    while rest:
        module = rest.pop()
        if module not in seen:
            seen.add(module)
            rest.extend(edges.get(module, ()))
    return seen


def check_private_modules(graph: Graph) -> Violations:
    """A module whose name starts with an underscore is known in the package that has it, nowhere else."""
    bad = []
    for arrow in graph.arrows:
        parts = arrow.target.split(".")
        at = next((i for i, part in enumerate(parts) if is_private(part)), 0)
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
    check_extension,
)
DEBTS = Path(__file__).with_name("python_debts.txt")


def read_debts() -> list[str]:
    return DEBTS.read_text().splitlines()


def violations(graph: Graph, debts: Collection[str]) -> dict[str, str]:
    """All violations, those that are debts among them; circles without the arrows of debts."""
    found = [check(graph) for check in CHECKS if check is not check_circles]
    found.append(check_circles(graph, debts))
    return {key: words for violation in reversed(found) for key, words in reversed(violation)}


def paid(graph: Graph, debts: Collection[str]) -> list[str]:
    """Debts that are none any more."""
    found = violations(graph, debts)
    gone = [debt for debt in debts if debt not in found and not debt.startswith("circle ")]
    return sorted([*gone, *needless_circles(graph, debts)])
