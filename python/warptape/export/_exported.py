"""export, and what it returns."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _C
from .._graphs import GraphFunction, GraphModule, check_constants, record
from .._tensor import Tensor
from ..graph_drawing import Drawing, draw
from ..nn import Module, Parameter
from ..serialization._files import replace_file
from ..utils._pytree import tree_flatten, tree_unflatten
from ._dims import ShapesCollection, Sizes, spread
from ._fx import to_fx


class ExportGraphSignature(NamedTuple):
    """The names of a graph's inputs and outputs, and of the tensors that it has."""

    user_inputs: tuple[str, ...]
    user_outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]


class ExportedProgram:
    """A graph of ops with its parameters and buffers.

    It does not depend on the code that it was made from. `module()` is what to call; `print` shows the
    graph, with the file and line of each call.

    Attributes:
        pass_counts: by pass, how many calls `torch.export.passes.optimize_pass` changed.
        is_frozen: its parameters and buffers are constants, which `module()` does not have.
    """

    def __init__(
        self, function: GraphFunction, parameters: frozenset[str], example: Any, is_frozen: bool = False
    ) -> None:
        self._function, self._parameters = function, parameters
        self.example_inputs, self.is_frozen = example, is_frozen
        self.pass_counts: dict[str, int] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "Unable to call ExportedProgram directly. You should use `exported_program.module()` instead."
        )

    def module(self, check_guards: bool = True) -> Module:
        """A module that runs the graph on arguments nested as the example's.

        Calling it raises ShapeError, DtypeError or DeviceError for inputs that the graph is not for.
        """
        if self.is_frozen:
            return GraphModule(self._function, None)
        return GraphModule(self._function, lambda name, _: name in self._parameters)

    @property
    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers by name."""
        graph = self._function.graph
        return {graph.values[i][3]: t for i, t in graph.constants.items()}

    def named_parameters(self) -> Any:
        """(name, tensor) of the parameters."""
        return ((name, t) for name, t in self.state_dict.items() if name in self._parameters)

    def parameters(self) -> Any:
        """The parameters."""
        return (t for _, t in self.named_parameters())

    def named_buffers(self) -> Any:
        """(name, tensor) of what is no parameter."""
        return ((name, t) for name, t in self.state_dict.items() if name not in self._parameters)

    def buffers(self) -> Any:
        """The tensors that are no parameters."""
        return (t for _, t in self.named_buffers())

    @property
    def range_constraints(self) -> dict[str, tuple[int, int]]:
        """The range of each size that varies, by its name."""
        return self._function.graph.symbols

    @property
    def graph_signature(self) -> ExportGraphSignature:
        """The names of inputs, outputs, parameters and buffers."""
        graph = self._function.graph
        return ExportGraphSignature(
            tuple(f"%{i}" for i in graph.inputs),
            tuple(f"%{i}" for i in graph.outputs),
            tuple(name for name, _ in self.named_parameters()),
            tuple(name for name, _ in self.named_buffers()),
        )

    @property
    def graph_module(self) -> Any:
        """The graph as an `fx.GraphModule` of flat arguments; its `code` makes the same calls in Python."""
        return to_fx(self._function)

    @property
    def graph(self) -> Any:
        """The `fx.Graph` of `graph_module`."""
        return self.graph_module.graph

    def run_decompositions(self, decomp_table: Any = None) -> ExportedProgram:
        """This program: its ops are those that its file names."""
        return self

    def draw(self) -> Drawing:
        """The picture of the graph, which notebooks show."""
        return draw(self._function.graph)

    def _repr_svg_(self) -> str:
        return self.draw().svg()

    def __str__(self) -> str:
        return f"ExportedProgram:\n{self._function.graph.text()}"


def _names_of_arguments(mod: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    """The parameters of the function that the positional arguments go to."""
    forward = mod.forward if isinstance(mod, Module) else mod
    try:
        return list(inspect.signature(forward).bind_partial(*args).arguments)
    except (TypeError, ValueError):
        return []


def specs_of(mod: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any) -> list[Any]:
    """What `dynamic_shapes` says of each tensor."""
    leaves = tree_flatten((args, kwargs))[0]
    if isinstance(dynamic, ShapesCollection):
        return dynamic.dynamic_shapes(mod, args, kwargs)
    if dynamic is None:
        return [None for x in leaves if isinstance(x, Tensor)]
    if isinstance(dynamic, dict):  # by the names of arguments
        names = _names_of_arguments(mod, args)
        unknown = dynamic.keys() - {*names, *kwargs}
        if unknown:
            raise ValueError(
                f"dynamic_shapes: there is no argument {sorted(unknown)}; there are {[*names, *kwargs]}"
            )
        dynamic = (*(dynamic.get(n) for n in names), *(dynamic.get(k) for k in kwargs))
    spec = spread(dynamic, (*args, *kwargs.values()))
    return [s for s, x in zip(spec, leaves, strict=True) if isinstance(x, Tensor)]


def generalised(
    mod: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], sizes: Sizes, strict: bool
) -> GraphFunction:
    """The graph of `mod` for all of `sizes`, recorded at two of each and checked at a third.

    Raises:
        NotImplementedError: the graph is another for other sizes: it says where.
    """
    leaves, spec = tree_flatten((args, kwargs))
    at = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]

    def recorded(numbers: list[int]) -> GraphFunction:
        resized = sizes.resized([leaves[i] for i in at], numbers)
        other = list(leaves)
        for i, t in zip(at, resized, strict=True):
            other[i] = t
        other_args, other_kwargs = tree_unflatten(other, spec)
        return record(mod, other_args, other_kwargs, strict=strict)

    low, (high, third) = sizes.examples, sizes.others()
    first = record(mod, args, kwargs, strict=strict)
    graphs = [first.graph]
    for mask in range(1, 1 << len(low)):
        graphs.append(recorded([h if mask >> s & 1 else n for s, (n, h) in enumerate(zip(low, high))]).graph)
    first.graph = _C._generalise(graphs, [(d.__name__, d.min, d.max) for d in sizes.symbols], low, high)
    _C._check_trace(first.graph, recorded(third).graph, third)
    return first


def export(
    mod: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    preserve_module_call_signature: tuple[str, ...] = (),
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> ExportedProgram:
    """The graph of the ops that mod(*args, **kwargs) calls.

    The function runs: once, and twice or more often for sizes that vary. Every integer that depends on these
    becomes an expression, linear in each of them; what else depends on them is an error that says where.
    Values that Python computes from anything but sizes are part of the graph.

    Args:
        mod: a module or a function.
        args, kwargs: example arguments; what is no tensor among them is part of the graph.
        dynamic_shapes: which sizes vary: by argument, in a dict of names or a tuple, None or {dim: Dim} or a
            Dim or None for each dim.
        strict, preserve_module_call_signature, prefer_deferred_runtime_asserts_over_guards: accepted, without
            effect.

    Raises:
        RuntimeError: a tensor's value is read: the message says at which line, and what to write instead.
        NotImplementedError: other calls, or a tensor that no op made, for other sizes or values of the
            inputs; a backward pass.
        ValueError: dynamic_shapes that do not fit the arguments.
        TypeError: `args` is no tuple.
    """
    if not isinstance(args, tuple):
        raise TypeError(f"export: expected args to be a tuple, got {type(args).__name__}")
    kwargs = kwargs or {}
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    sizes = Sizes(tensors, specs_of(mod, args, kwargs, dynamic_shapes))
    if sizes.symbols:
        function = generalised(mod, args, kwargs, sizes, True)
    else:
        function = record(mod, args, kwargs, strict=True)
        check_constants(mod, function, args, kwargs)
    values, constants = function.graph.values, function.graph.constants
    parameters = frozenset(values[i][3] for i, t in constants.items() if isinstance(t, Parameter))
    return ExportedProgram(function, parameters, (args, kwargs))


def write_graph(f: Any, function: GraphFunction, **more: Any) -> None:
    """Writes a graph to a path, which has all of it or what it had before, or to a binary file."""
    data = function.to_bytes(**more)
    if isinstance(f, (str, os.PathLike)):
        replace_file(os.fspath(f), [data])
    else:
        f.write(data)


def read_graph(f: Any) -> tuple[GraphFunction, dict[str, Any]]:
    """What `write_graph` wrote to a path or a binary file. Raises ValueError, NotImplementedError."""
    if not isinstance(f, (str, os.PathLike)):
        return GraphFunction.from_bytes(f.read())
    with open(f, "rb") as file:
        return GraphFunction.from_bytes(file.read())


def save(ep: ExportedProgram, f: Any, *, extra_files: Any = None, **options: Any) -> None:
    """Writes the program to a path or a binary file: safetensors with a checksum (docs/export.md)."""
    write_graph(f, ep._function, parameters=sorted(ep._parameters), frozen=ep.is_frozen)


def load(f: Any, **options: Any) -> ExportedProgram:
    """Reads what `save` wrote. No code of the file is run.

    Raises:
        ValueError: what is wrong with the file.
        NotImplementedError: an op that this version does not have, or with other arguments.
    """
    function, more = read_graph(f)
    return ExportedProgram(function, frozenset(more.get("parameters", ())), None, more.get("frozen", False))
