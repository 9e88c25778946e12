"""export, and what it returns."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import _C
from ...core import Tensor
from ...core.pytree import tree_flatten, tree_unflatten
from ...nn import Module, Parameter
from ...serialization.files import replace_file
from ...tools.graph_drawing import Drawing, draw
from ..graphs import (
    GraphFunction,
    GraphModule,
    check_constants,
    check_results,
    positional_names,
    record,
    unchanged,
)
from ._fx import to_fx
from .dims import ShapesCollection, Sizes, spread

if TYPE_CHECKING:
    from warptape.core.types import FileLike


class ExportGraphSignature(NamedTuple):
    """The names of a graph's inputs and outputs, and of the tensors that it has.

    Args:
        user_inputs: of the tensors that a caller gives, as "%0".
        user_outputs: of the tensors that it returns.
        parameters: of the module's parameters.
        buffers: of its other tensors.
    """

    user_inputs: tuple[str, ...]
    user_outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]


class ExportedModule(GraphModule):
    """A module that runs an exported graph.

    The graph is that of the mode, training or evaluation, in which it was recorded.
    """

    def train(self, mode: bool = True) -> Any:
        """Would switch between training and evaluation, which a recorded graph cannot.

        Args:
            mode: not looked at but for the text of the error.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"Calling {'train' if mode else 'eval'}() is not supported yet: the graph is the one of the mode "
            "that the module was exported in. Call it before torch.export.export"
        )


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
        """Raises RuntimeError: a program is called as `program.module()`."""
        raise RuntimeError(
            "Unable to call ExportedProgram directly. You should use `exported_program.module()` instead."
        )

    def _graph_function(self) -> GraphFunction:
        return self._function

    def module(self, check_guards: bool = True) -> Module:
        """A module that runs the graph on arguments nested as the example's.

        Calling it raises ShapeError, DtypeError or DeviceError for inputs that the graph is not for.
        """
        if self.is_frozen:
            return ExportedModule(self._function, None)
        return ExportedModule(self._function, lambda name, _: name in self._parameters)

    def __deepcopy__(self, memo: dict[int, Any]) -> ExportedProgram:
        copied = copy.copy(self)
        memo[id(self)] = copied
        copied._function = copy.deepcopy(self._function, memo)
        return copied

    def _named(self) -> dict[str, Tensor]:
        """The constants that have names of the module's."""
        values, constants = self._function.graph.values, self._function.graph.constants
        return {values[i][3]: t for i, t in constants.items() if values[i][3] != f"constant_{i}"}

    @property
    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, without non-persistent buffers.

        A tensor of several names is there under each of them.
        """
        state, own = self._function.state, self._named()
        own |= {name: own[first] for name, first in state.get("aliases", {}).items() if first in own}
        transient = {*state.get("transient", ())}
        return {name: t for name, t in own.items() if name not in transient}

    @property
    def constants(self) -> dict[str, Tensor]:
        """The tensors that `state_dict` does not have, by name.

        They are tensors of the function itself, and non-persistent buffers.
        """
        graph, named = self._function.graph, self.state_dict
        tensors = {graph.values[i][3]: t for i, t in graph.constants.items()}
        return {name: t for name, t in tensors.items() if name not in named}

    def named_parameters(self) -> Any:
        """Iterates over the parameters.

        Returns:
            An iterator over (name, tensor).
        """
        return ((name, t) for name, t in self._named().items() if name in self._parameters)

    def parameters(self) -> Any:
        """The parameters."""
        return (t for _, t in self.named_parameters())

    def named_buffers(self) -> Any:
        """Iterates over the tensors that are no parameters.

        Returns:
            An iterator over (name, tensor).
        """
        return ((name, t) for name, t in self._named().items() if name not in self._parameters)

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
        """The graph as an `fx.GraphModule`.

        Its arguments are the flat list of tensors, and its `code` makes the same calls in Python.
        """
        return to_fx(self._function)

    @property
    def graph(self) -> Any:
        """The `fx.Graph` of `graph_module`."""
        return self.graph_module.graph

    def run_decompositions(self, decomp_table: object = None) -> ExportedProgram:
        """Returns this program: its ops are already those that its file names.

        Args:
            decomp_table: not looked at.
        """
        return self

    def draw(self) -> Drawing:
        """Draws the graph.

        Returns:
            A Drawing, which notebooks show.
        """
        return draw(self._function.graph)

    def _repr_svg_(self) -> str:
        return self.draw().svg()

    def __str__(self) -> str:
        return f"ExportedProgram:\n{self._function.graph.text()}"


def specs_of(mod: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any) -> list[Any]:
    """Which sizes vary of each tensor among the arguments.

    Args:
        mod: the function or module, whose signature names the arguments.
        args, kwargs: of the call.
        dynamic: the argument `dynamic_shapes` of export.

    Returns:
        An entry for each tensor of (args, kwargs); None where nothing varies.

    Raises:
        ValueError: `dynamic` names an argument that there is not.
    """
    leaves = tree_flatten((args, kwargs))[0]
    if isinstance(dynamic, ShapesCollection):
        return dynamic.dynamic_shapes(mod, args, kwargs)
    if dynamic is None:
        return [None for x in leaves if isinstance(x, Tensor)]
    if isinstance(dynamic, dict):  # by the names of arguments
        names = positional_names(mod, args)
        unknown = dynamic.keys() - {*names, *kwargs}
        if unknown:
            raise ValueError(
                f"dynamic_shapes: there is no argument {sorted(unknown)}; there are {[*names, *kwargs]}"
            )
        dynamic = (*(dynamic.get(n) for n in names), *(dynamic.get(k) for k in kwargs))
    spec = spread(dynamic, (*args, *kwargs.values()))
    return [s for s, x in zip(spec, leaves, strict=True) if isinstance(x, Tensor)]


class _Recorder:
    """Records a function at several sizes of its tensors."""

    def __init__(
        self,
        mod: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sizes: Sizes,
        strict: bool,
    ) -> None:
        self.mod, self.sizes, self.strict = mod, sizes, strict
        self.leaves, self.spec = tree_flatten((args, kwargs))
        self.tensors = [x for x in self.leaves if isinstance(x, Tensor)]

    def inputs(self, numbers: list[int]) -> list[Tensor]:
        """The tensors at these sizes."""
        return self.sizes.resized(self.tensors, numbers)

    def __call__(self, numbers: list[int]) -> GraphFunction:
        """The graph at these sizes."""
        resized = iter(self.inputs(numbers))
        other = [next(resized) if isinstance(x, Tensor) else x for x in self.leaves]
        args, kwargs = tree_unflatten(other, self.spec)
        return record(self.mod, args, kwargs, strict=self.strict)

    def second(self) -> tuple[list[int], dict[int, GraphFunction]]:
        """A second size of each symbol that the function takes, and the graphs by the symbol's bit."""
        low, high, found = self.sizes.examples, [], {}
        for s in range(len(low)):
            tried = self.sizes.second(s)
            for size in tried:
                try:
                    found[1 << s] = self([size if k == s else n for k, n in enumerate(low)])
                except (ValueError, RuntimeError, IndexError, AssertionError):
                    if size == tried[-1]:
                        raise
                    continue
                high.append(size)
                break
        return high, found

    def check(self, made: GraphFunction, numbers: list[int]) -> None:
        """NotImplementedError: at these sizes the function does something else than the graph."""
        try:
            again = self(numbers)
        except Exception as error:
            try:
                made.graph.run(self.inputs(numbers))
            except (ValueError, RuntimeError, IndexError, TypeError):
                return  # neither takes them
            sizes = {d.__name__: n for d, n in zip(self.sizes.symbols, numbers, strict=True)}
            raise NotImplementedError(
                f"export: the function fails for {sizes}, which is in the range of dynamic_shapes: {error}. "
                "Give the Dim a narrower range"
            ) from error
        _C._check_trace(made.graph, again.graph, numbers)
        check_results(made, again, "sizes")


def generalised(
    mod: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sizes: Sizes,
    strict: bool,
    thorough: bool = True,
) -> GraphFunction:
    """The graph of `mod` for all of `sizes`, recorded at two of each and checked at others.

    Sizes 0 and 1 are taken out of a range where the function does something else for them.

    Args:
        thorough: checks at more sizes where the function asked for sizes, and with other values.

    Raises:
        NotImplementedError: the graph is another for other sizes: it says where.
    """
    recorded = _Recorder(mod, args, kwargs, sizes, strict)
    low = sizes.examples
    first = recorded(low)
    if thorough:
        check_constants(mod, first, args, kwargs)
    high, graphs = recorded.second()
    masks, traces = [0, *graphs], [first.graph, *(g.graph for g in graphs.values())]
    for mask in _C._missing_traces(traces, masks):
        numbers = [h if mask >> s & 1 else n for s, (n, h) in enumerate(zip(low, high, strict=True))]
        masks.append(mask)
        traces.append(recorded(numbers).graph)
    symbols = [(d.__name__, d.min, d.max) for d in sizes.symbols]
    general = first.with_graph(_C._generalise(traces, masks, symbols, low, high))
    for numbers in sizes.checked(high, recorded.tensors, thorough and first.sizes_told):
        recorded.check(general, numbers)
    for symbol, numbers in sizes.low_ends() if thorough and first.sizes_told else ():
        try:
            recorded.check(general, numbers)
        except NotImplementedError:
            general.graph.set_min(
                symbol, max(general.graph.symbols[sizes.symbols[symbol].__name__][0], numbers[symbol] + 1)
            )
    return general


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

    The function runs several times, at several of the sizes that vary; what it writes to the module's tensors
    and attributes is undone, and the random state stays what it was. Every integer that depends on these
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
    with unchanged(mod):
        if sizes.symbols:
            function = generalised(mod, args, kwargs, sizes, True)
        else:
            function = record(mod, args, kwargs, strict=True)
            check_constants(mod, function, args, kwargs)
    values, constants = function.graph.values, function.graph.constants
    parameters = frozenset(values[i][3] for i, t in constants.items() if isinstance(t, Parameter))
    return ExportedProgram(function, parameters, (args, kwargs))


def write_graph(f: FileLike, function: GraphFunction, **more: Any) -> None:
    """Writes a graph to a file.

    Args:
        f: a path or a binary file; a path has the whole graph afterwards, or what it had before.
        function: the recorded function.
        **more: what the file says besides.
    """
    data = function.to_bytes(**more)
    if isinstance(f, (str, os.PathLike)):
        replace_file(os.fspath(f), [data])
    else:
        f.write(data)


def read_graph(f: FileLike) -> tuple[GraphFunction, dict[str, Any]]:
    """Reads what `write_graph` wrote.

    Args:
        f: a path or a binary file.

    Returns:
        The recorded function, and what the file says besides.

    Raises:
        ValueError, NotImplementedError: it is no such file, or it has something that this version cannot run.
    """
    if not isinstance(f, (str, os.PathLike)):
        return GraphFunction.from_bytes(f.read())
    with open(f, "rb") as file:
        return GraphFunction.from_bytes(file.read())


def save(
    ep: ExportedProgram, f: FileLike, *, extra_files: dict[str, Any] | None = None, **options: Any
) -> None:
    """Writes the program to a path or a binary file: safetensors with a checksum (docs/guides/export.md)."""
    write_graph(f, ep._function, parameters=sorted(ep._parameters), frozen=ep.is_frozen)


def load(f: FileLike, **options: Any) -> ExportedProgram:
    """Reads what `save` wrote. No code of the file is run.

    Raises:
        ValueError: what is wrong with the file.
        NotImplementedError: an op that this version does not have, or with other arguments.
    """
    function, more = read_graph(f)
    return ExportedProgram(function, frozenset(more.get("parameters", ())), None, more.get("frozen", False))
