"""Proxy: stands for a tensor while a program is traced, and records what is done with it."""

from __future__ import annotations

import collections
import dataclasses
import dis
import enum
import linecache
import operator
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Any, NoReturn

from warptape import core as wt

from ...core.overrides import resolve_name
from ._codegen import COMPARE, INFIX, PREFIX
from .graph import Graph
from .node import Argument, Node, Target, base_types, map_aggregate

__all__ = ["Attribute", "GraphAppendingTracer", "ParameterProxy", "Proxy", "TraceError", "TracerBase"]

_HERE = os.path.dirname(__file__)
_ITERATED = (
    "Proxy object cannot be iterated. This can be attempted when the Proxy is used in a loop or as a *args "
    "or **kwargs function argument. See the torch.fx docs on pytorch.org for a more detailed explanation of "
    "what types of control flow can be traced, and check out the Proxy docstring for help troubleshooting "
    "Proxy iteration errors"
)


class TraceError(ValueError):
    """The program asks for a value that there is only when it runs.

    As the number of a tensor in a branch or a loop.
    """


def _user_frame() -> FrameType | None:
    """The innermost frame outside of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and os.path.dirname(frame.f_code.co_filename) == _HERE:
        frame = frame.f_back
    return frame


def _stack_text(frame: FrameType) -> str | None:
    """The lines of the traced program that led to a frame."""
    stack = traceback.extract_stack(frame)
    own = [os.path.dirname(line.filename) == _HERE for line in stack]
    if True not in own:
        return None  # not a step of the program: an argument, or the result
    start = own.index(True)
    return "".join(traceback.format_list([f for f, o in zip(stack[start:], own[start:]) if not o])).strip()


def _refuse(text: str) -> NoReturn:
    if frame := _user_frame():
        file, line = frame.f_code.co_filename, frame.f_lineno
        code = linecache.getline(file, line).strip()
        text += f" ({file}:{line}, in {frame.f_code.co_name}: {code})"
    raise TraceError(text)


class TracerBase:
    """Makes nodes of calls; `graph` is where they go.

    A tracer of one's own overrides what it needs.
    """

    graph: Graph
    record_stack_traces: bool = False
    proxy_buffer_attributes: bool = False
    traced_func_name: str = "forward"
    #: The modules whose forward runs, outermost first, by path.
    module_stack: collections.OrderedDict[str, tuple[str, Any]]

    def create_node(
        self,
        kind: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: object = None,
    ) -> Node:
        """A new node in the graph.

        Args:
            kind: as "call_function".
            target: a function, or a name.
            args, kwargs: nodes and plain values.
            name: a proposal.
            type_expr: of the result.
        """
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        if getattr(self, "module_stack", None):
            node.meta["nn_module_stack"] = self.module_stack.copy()
        if self.record_stack_traces and (frame := _user_frame()):
            node.stack_trace = _stack_text(frame)
        return node

    def proxy(self, node: Node) -> Proxy:
        """The proxy for a node.

        Args:
            node: of the graph.
        """
        return Proxy(node, self)

    def create_proxy(
        self,
        kind: str,
        target: Target,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: object = None,
        proxy_factory_fn: Callable[[Node], Proxy] | None = None,
    ) -> Proxy:
        """A new node, and its proxy; the arguments may have proxies among them.

        Args:
            kind: as "call_function".
            target: a function, or a name.
            args, kwargs: proxies and plain values.
            name: a proposal.
            type_expr: of the result.
            proxy_factory_fn: makes the proxy.
        """
        arguments = self.create_arg(args), self.create_arg(kwargs)
        return (proxy_factory_fn or self.proxy)(self.create_node(kind, target, *arguments, name, type_expr))

    def create_arg(self, a: object) -> Argument:
        """A value of the program as an argument of a node. NotImplementedError for other types.

        Args:
            a: proxies, also in containers, and plain values.
        """
        if isinstance(a, Proxy):
            return a.node
        if isinstance(a, Node) or (isinstance(a, base_types) and not isinstance(a, tuple)):
            return a
        if hasattr(a, "__fx_create_arg__"):
            return a.__fx_create_arg__(self)
        if isinstance(a, tuple):
            items = [self.create_arg(x) for x in a]
            return type(a)(*items) if hasattr(a, "_fields") else tuple(items)
        if isinstance(a, list):
            return [self.create_arg(x) for x in a]
        if isinstance(a, dict):
            return {self._create_key(key): self.create_arg(x) for key, x in a.items()}
        if isinstance(a, slice | range):
            return type(a)(*(self.create_arg(x) for x in (a.start, a.stop, a.step)))
        if isinstance(a, enum.Enum):
            return a
        if dataclasses.is_dataclass(a) and not isinstance(a, type):
            fields = {f.name: self.create_arg(getattr(a, f.name)) for f in dataclasses.fields(a)}
            return self.create_node("call_function", type(a), (), fields)
        raise NotImplementedError(f"argument of type: {type(a)}")

    def _create_key(self, key: Any) -> Any:
        arg = self.create_arg(key)

        def refuse_node(x: object) -> Any:
            if isinstance(x, Node):
                raise RuntimeError(
                    f"Keys for dictionaries used as an argument cannot contain a Node. Got key: {key.node}"
                )
            return x

        return map_aggregate(arg, refuse_node)

    def to_bool(self, obj: Proxy) -> bool:
        """What a branch on a proxy gets: a TraceError, unless a subclass knows.

        Args:
            obj: what the branch reads.
        """
        _refuse("symbolically traced variables cannot be used as inputs to control flow")

    def iter(self, obj: Proxy) -> Iterator[Any]:
        """What a loop over a proxy gets: its items where the program says how many, else a TraceError.

        Args:
            obj: what the loop reads.
        """
        frame = _user_frame()
        if frame is not None:
            step = next(i for i in dis.get_instructions(frame.f_code) if i.offset == frame.f_lasti)
            if step.opname == "UNPACK_SEQUENCE":
                return (operator.getitem(obj, i) for i in range(step.argval))
        _refuse(_ITERATED)

    def keys(self, obj: Proxy) -> Any:
        """What `**proxy` iterates over.

        Args:
            obj: the mapping.
        """
        return Attribute(obj, "keys")()


class GraphAppendingTracer(TracerBase):
    """Adds to a graph that there is already.

    Args:
        graph: where nodes go.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.module_stack = collections.OrderedDict()


class Proxy:
    """Stands for the value of a node: operators, attributes, methods, and functions of torch make new nodes.

    What needs the value itself, `if x:`, `for y in x:`, `int(x)`, cannot be traced. A loop can, once its
    length is written in the program; a function that branches can when it is a leaf, see `wrap`.
    """

    def __init__(self, node: Node, tracer: TracerBase | None = None) -> None:
        self.tracer = GraphAppendingTracer(node.graph) if tracer is None else tracer
        self.node = node

    def __repr__(self) -> str:
        return f"Proxy({self.node.name})"

    def __getattr__(self, k: str) -> Attribute:
        return Attribute(self, k)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state

    def __deepcopy__(self, memo: dict[int, Any]) -> Proxy:
        return Proxy(self.node, self.tracer)

    def __call__(self, *args: Any, **kwargs: Any) -> Proxy:  # noqa: D102
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self) -> Iterator[Any]:
        return self.tracer.iter(self)

    def __bool__(self) -> bool:
        return self.tracer.to_bool(self)

    def keys(self) -> Any:
        """A node that calls keys()."""
        return self.tracer.keys(self)

    def __len__(self) -> NoReturn:
        raise RuntimeError(
            "'len' is not supported in symbolic tracing by default. If you want this call to be recorded, "
            "please call torch.fx.wrap('len') at module scope"
        )

    @classmethod
    def __torch_function__(
        cls,
        orig_method: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        tracers: dict[TracerBase, None] = {}

        def note(x: object) -> Any:
            if isinstance(x, Proxy):
                tracers[x.tracer] = None
            return x

        map_aggregate((args, kwargs), note)
        if len(tracers) > 1:
            raise RuntimeError(
                f"Found multiple different tracers {list(tracers)} while trying to trace operations "
                f"{orig_method}"
            )
        tracer = next(iter(tracers))
        if (resolve_name(orig_method) or "").startswith("torch.Tensor."):
            return tracer.create_proxy("call_method", orig_method.__name__, args, kwargs)
        return tracer.create_proxy("call_function", orig_method, args, kwargs)


class Attribute(Proxy):
    """An attribute of a proxy; a node is made when it is used, unless it is called: then it is a method.

    Args:
        root: whose attribute it is.
        attr: its name.
    """

    def __init__(self, root: Proxy, attr: str) -> None:
        self.root, self.attr, self.tracer = root, attr, root.tracer
        self._node: Node | None = None

    @property
    def node(self) -> Node:  # type: ignore[override]
        """The node that reads the attribute."""
        if self._node is None:
            self._node = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
        return self._node

    def __call__(self, *args: Any, **kwargs: Any) -> Proxy:  # noqa: D102
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


class ParameterProxy(Proxy):
    """A parameter of the traced module, whose shape is known.

    Args:
        tracer: of the trace.
        node: that reads it.
        name: its path.
        param: the parameter.
    """

    def __init__(self, tracer: TracerBase, node: Node, name: str, param: wt.Tensor) -> None:
        super().__init__(node, tracer)
        self.param, self.name = param, name

    def __repr__(self) -> str:
        return f"ParameterProxy({self.name})"

    @property
    def shape(self) -> Any:
        """The parameter's."""
        return self.param.shape

    @property
    def ndim(self) -> int:
        """The parameter's."""
        return self.param.ndim

    def size(self, *args: Any) -> Any:
        """The parameter's.

        Args:
            *args: of Tensor.size.
        """
        return self.param.size(*args)

    def dim(self) -> int:
        """The parameter's."""
        return self.param.dim()

    def numel(self) -> int:
        """The parameter's."""
        return self.param.numel()

    def nelement(self) -> int:
        """The parameter's."""
        return self.param.nelement()


def _define(function: Callable[..., Any]) -> None:
    name = function.__name__.strip("_")

    def record(*args: Any, **kwargs: Any) -> Any:
        return args[0].tracer.create_proxy("call_function", function, args, kwargs)

    def record_reflected(self: Proxy, other: object) -> Any:
        return self.tracer.create_proxy("call_function", function, (other, self), {})

    setattr(Proxy, f"__{name}__", record)
    if function in INFIX:
        setattr(Proxy, f"__r{name}__", record_reflected)


_functions: tuple[Any, ...] = (*INFIX, *COMPARE, *PREFIX, operator.abs, operator.getitem)
for _function in _functions:
    _define(_function)
