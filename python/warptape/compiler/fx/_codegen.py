"""A graph as Python source: names for its nodes, imports for what it calls, and `forward`."""

from __future__ import annotations

import builtins
import enum
import keyword
import math
import operator
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from warptape import core as wt

from ..._missing import find
from ...core import offered, pytree
from . import _pytree as fx_pytree
from .node import Argument, Node, _get_qualified_name, _type_repr

# What the reprs of values name.
_REPR_NAMES = {
    "inf": math.inf,
    "nan": math.nan,
    "NoneType": type(None),
    "torch": offered("root"),
    "device": wt.device,
    "fx_pytree": fx_pytree,
    "pytree": pytree,
}
INFIX = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.matmul: "@",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
}
COMPARE = {
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
PREFIX = {operator.neg: "-", operator.pos: "+", operator.invert: "~"}
_TWO = INFIX | COMPARE
_IN_PLACE = {
    getattr(operator, f"i{function.__name__.strip('_')}"): f"{sign}=" for function, sign in INFIX.items()
}


class Namespace:
    """Names that are valid, each given out once."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._last: dict[str, int] = {}  # by what is before the number at a name's end, the number used last

    def create_name(self, candidate: str, obj: object = None) -> str:
        """A name like `candidate` for a node, or (`obj`) for what the name may already stand for."""
        candidate = re.sub(r"[^0-9a-zA-Z_]", "_", candidate) or "_unnamed"
        if candidate[0].isdigit():
            candidate = f"_{candidate}"
        ending = re.fullmatch(r"(.*)_(\d+)", candidate)
        base, number = (ending[1], int(ending[2])) if ending else (candidate, None)
        while candidate in self._used or self._is_taken(candidate, obj):
            number = (self._last.get(base, 0) if number is None else number) + 1
            candidate = f"{base}_{number}"
        self._used.add(candidate)
        self._last[base] = number or 0
        return candidate

    @staticmethod
    def _is_taken(name: str, obj: object) -> bool:
        if keyword.iskeyword(name):
            return True
        for known in (vars(builtins), _REPR_NAMES):
            if name in known:
                return known[name] is not obj
        return False


def name_of_target(target: Any) -> str:
    """What a node with this target is called: max_pool2d, layer_norm for LayerNorm, layers_0."""
    name = target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)
    place = re.match(
        r"torch\.(linalg|fft|special)\.", "" if isinstance(target, str) else _get_qualified_name(target)
    )
    if place and not isinstance(target, type):
        name = f"{place[1]}_{name}"
    if re.fullmatch(r"__.+__", name):
        name = name[2:-2]
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name.replace(".", "_")).lower()


@dataclass
class PythonCode:
    """Source of a function `forward`, and the names that it needs."""

    src: str
    globals: dict[str, Any]


@dataclass
class PyTreeInfo:
    """How the arguments and the result of a graph, whose nodes are leaves, are nested."""

    orig_args: list[str]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec | None


class CodeWriter:
    """Writes the source of one graph."""

    def __init__(self, graph: Any, root: str, verbose: bool = False) -> None:
        self.graph, self.root, self.verbose = graph, root, verbose
        self.globals = dict(_REPR_NAMES)
        self.names = Namespace()
        self.node_names = {node: self.names.create_name(node.name) for node in graph.nodes}
        self.free: list[str] = []
        self.body: list[str] = []
        self.wrapped: dict[str, None] = {}
        self.returns = ""
        self._trace: str | None = ""

    # --- values ---

    def add_global(self, hint: str, obj: object) -> str:
        """The name or dotted path by which the code has `obj`."""
        if hint.startswith("torch."):
            try:
                if find(hint) is obj:
                    return hint
            except (AttributeError, ImportError):
                pass  # a local class, or one under another module's name
        name = hint.replace(".", "_")
        if self.globals.get(name, self) is not obj:
            name = self.names.create_name(name, obj)
            self.globals[name] = obj
        return name

    def value(self, arg: Argument) -> str:
        """The expression for an argument."""
        if isinstance(arg, Node):
            return self.node_names[arg]
        if isinstance(arg, tuple) and hasattr(arg, "_fields"):
            kind = self.add_global(_get_qualified_name(type(arg)), type(arg))
            return f"{kind}({', '.join(map(self.value, arg))})"
        if isinstance(arg, tuple):
            return f"({', '.join(map(self.value, arg))}{',' if len(arg) == 1 else ''})"
        if isinstance(arg, list):
            return f"[{', '.join(map(self.value, arg))}]"
        if isinstance(arg, dict):
            return f"{{{', '.join(f'{key!r}: {self.value(x)}' for key, x in arg.items())}}}"
        if isinstance(arg, slice):
            return f"slice({', '.join(map(self.value, (arg.start, arg.stop, arg.step)))})"
        if isinstance(arg, enum.Enum):
            return f"{self.add_global(type(arg).__name__, type(arg))}.{arg.name}"
        return repr(arg)

    def annotation(self, o: Any) -> str:
        """The expression for a type annotation."""
        if isinstance(o, list):  # the arguments of a Callable
            return f"[{','.join(map(self.annotation, o))}]"
        if o is ... or isinstance(o, str):
            return repr(o) if isinstance(o, str) else "..."
        origin, args = typing.get_origin(o), typing.get_args(o)
        if isinstance(o, types.UnionType):
            return "|".join(map(self.annotation, args))
        if not args or origin in (typing.Literal, typing.Annotated):
            return self.add_global(_type_repr(o), o)
        name = getattr(o, "_name", None) if type(o).__module__ == "typing" else None
        bare = typing.Union if origin is typing.Union else getattr(typing, name) if name else origin
        head = self.add_global(
            f"typing.{bare._name}" if bare is not origin or name else _type_repr(bare), bare
        )
        return f"{head}[{','.join(map(self.annotation, args))}]"

    def call(self, function: str, args: Iterable[Argument], kwargs: dict[str, Argument]) -> str:
        arguments = [self.value(a) for a in args] + [f"{key} = {self.value(a)}" for key, a in kwargs.items()]
        return f"{function}({', '.join(arguments)})"

    @staticmethod
    def path(base: str, target: str) -> str:
        """The expression for an attribute of an attribute .. of `base`."""
        for name in target.split("."):
            base = f"{base}.{name}" if name.isidentifier() else f'getattr({base}, "{name}")'
        return base

    # --- nodes ---

    def placeholder(self, node: Node, kind: str) -> None:
        default = f" = {self.value(node.args[0])}" if node.args else ""
        self.free.append(f"{node.target}{kind}{default}")
        raw = node.target.lstrip("*")
        if raw != self.node_names[node]:
            self.body.append(f"{self.node_names[node]} = {raw}\n")

    def call_function(self, node: Node) -> str:
        function, args = node.target, node.args
        if not node.kwargs and function in _TWO and len(args) == 2:
            left, right = map(self.value, args)
            if function is operator.pow and left.startswith("-"):
                left = f"({left})"
            return f"{left} {_TWO[function]} {right}"
        if not node.kwargs and function in PREFIX and len(args) == 1:
            return f"{PREFIX[function]}{self.value(args[0])}"
        if function is operator.getitem and len(args) == 2:
            return f"{self.value(args[0])}[{self.value(args[1])}]"
        if function is getattr and len(args) == 2 and isinstance(args[1], str) and args[1].isidentifier():
            return f"{self.value(args[0])}.{args[1]}"
        name = self.add_global(_get_qualified_name(function), function)
        if node.meta.get("is_wrapped"):
            self.wrapped[f'torch.fx._symbolic_trace.wrap("{name}")'] = None
        return self.call(name, args, node.kwargs)

    def statement(self, node: Node) -> str:
        """The right side of a node's assignment."""
        if node.op == "call_function":
            return self.call_function(node)
        if node.op == "call_method":
            return self.call(f"{self.value(node.args[0])}.{node.target}", node.args[1:], node.kwargs)
        place = self.path(self.root, node.target)
        return place if node.op == "get_attr" else self.call(place, node.args, node.kwargs)

    def node(self, node: Node, last_uses: list[Node]) -> None:
        kind = "" if node.type is None else f" : {self.annotation(node.type)}"
        if node.op == "placeholder":
            self.placeholder(node, kind)
        elif node.op == "output":
            self.returns = f" -> {kind[3:]}" if kind else ""
            self.body.append(f"return {self._result(self.value(node.args[0]))}\n")
        else:
            self.step(node, kind, last_uses)

    def step(self, node: Node, kind: str, last_uses: list[Node]) -> None:
        if self.verbose:
            self._say_where(node)
        name = self.node_names[node]
        if node.op == "call_function" and node.target in _IN_PLACE and not node.kwargs:
            first, second = map(self.value, node.args)
            line = f"{first} {_IN_PLACE[node.target]} {second};  {name} = {first}"
        elif node.target is operator.setitem and not node.kwargs:
            first, index, value = map(self.value, node.args)
            line = f"{first}[{index}] = {value};  {name} = {first}"
        else:
            line = f"{name}{kind} = {self.statement(node)}"
        dropped = "".join(f"{self.node_names[n]} = " for n in last_uses)
        self.body.append(f"{line};  {dropped}None\n" if dropped else f"{line}\n")

    def _say_where(self, node: Node) -> None:
        trace = node.stack_trace
        if trace == self._trace:
            return
        self._trace = trace
        where = re.findall(r'File "(.+)", line (\d+), in (.+)\n\s*(.+)', trace or "")
        text = "No stacktrace found for following nodes"
        if where:
            text = "File: {}:{} in {}, code: {}".format(*where[-1])
        self.body.append(f"\n# {text}\n")

    def _result(self, value: str) -> str:
        info = self.graph._pytree_info
        if info is None or info.out_spec is None:
            return value
        return f"pytree.tree_unflatten({value}, self._out_spec)"

    def write(self) -> PythonCode:
        """The whole."""
        last_uses: dict[Node, list[Node]] = {}
        seen: set[Node] = set()
        for node in reversed(self.graph.nodes):  # a value is dropped behind the last node that takes it
            ended = [n for n in node.all_input_nodes if n not in seen]
            if not node.users and node.op not in ("placeholder", "output"):
                ended.append(node)
            seen.update(ended)
            last_uses[node] = ended
        for node in self.graph.nodes:
            self.node(node, last_uses[node])
        parameters = [self.root, *self.free]
        if info := self.graph._pytree_info:
            leaves = [parameter.partition(" ")[0] for parameter in self.free]
            flat = f"fx_pytree.tree_flatten_spec([{', '.join(info.orig_args)}], self._in_spec)\n"
            self.body[:0] = [f"{', '.join(leaves)}, = {flat}"] if leaves else []
            parameters = [self.root, *info.orig_args]
        lines = "".join(self.body or ["pass\n"]).lstrip("\n").split("\n")
        head = f"def forward({', '.join(parameters)}){self.returns}:"
        wraps = "\n".join(self.wrapped)
        body = "\n".join(f"    {line}" if line or i == len(lines) - 1 else "" for i, line in enumerate(lines))
        return PythonCode(f"\n{wraps}\n\n{head}\n{body}", self.globals)
