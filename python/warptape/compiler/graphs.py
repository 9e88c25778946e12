"""Graphs of ops as Python calls them: recorded from a function, with nested arguments, in files, as modules.

`torch.export`, `torch.jit.trace` and `torch.onnx.export` stand on it. The graph itself, which needs no Python
to run, is `_C._OpGraph` (csrc/graph/ir/graph.h).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

from warptape import core as wt

from .. import _C
from ..core import Tensor
from ..core.pytree import LeafSpec, TreeSpec, tree_flatten, tree_unflatten
from ..nn import Module, Parameter

_CONTAINERS = {"tuple": tuple, "list": list, "dict": dict}


def _module_of(fn: Callable[..., Any]) -> Module | None:
    """The module whose code a function is."""
    if isinstance(fn, functools.partial):
        return next(filter(None, map(_module_of, (fn.func, *fn.args))), None)
    owner = fn if isinstance(fn, Module) else getattr(fn, "__self__", None)
    return owner if isinstance(owner, Module) else None


def _named_tensors(fn: Callable[..., Any]) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of a module, shared ones under each of their names; nothing for a function."""
    owner = _module_of(fn)
    if owner is not None:
        yield from owner.named_parameters(remove_duplicate=False)
        yield from owner.named_buffers(remove_duplicate=False)


def _transient(fn: Callable[..., Any]) -> list[str]:
    """The names of a module's buffers that no state_dict has."""
    owner = _module_of(fn)
    return [
        f"{path}.{name}".lstrip(".")
        for path, m in (owner.named_modules() if owner is not None else ())
        for name in m._non_persistent_buffers_set
    ]


def positional_names(fn: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    """The parameters that positional arguments go to.

    Args:
        fn: a function, or a module, whose `forward` counts.
        args: the arguments.

    Returns:
        Their names; an empty list where there is no signature or it does not take them.
    """
    try:
        return list(inspect.signature(getattr(fn, "forward", fn)).bind_partial(*args).arguments)
    except (TypeError, ValueError):
        return []


@contextlib.contextmanager
def unchanged(fn: Callable[..., Any]) -> Iterator[None]:
    """A context that restores the random state and the attributes of a module at its end.

    A recording is no step of the program and leaves no trace.

    Args:
        fn: a module, a method of one, or a function.
    """
    owner = _module_of(fn)
    before = [(m, dict(m.__dict__)) for m in (owner.modules() if owner is not None else ())]
    random_state = wt.get_rng_state()
    try:
        yield
    finally:
        wt.set_rng_state(random_state)
        for m, attributes in before:
            now = m.__dict__
            if now.keys() != attributes.keys() or any(now[k] is not v for k, v in attributes.items()):
                now.clear()
                now.update(attributes)


@contextlib.contextmanager
def _same_buffers(fn: Callable[..., Any]) -> Iterator[None]:
    """Raises NotImplementedError where a module assigned a buffer, which a graph would not do."""
    owner = _module_of(fn)
    before = [(m, dict(m._buffers)) for m in (owner.modules() if owner is not None else ())]
    assigned = None
    try:
        yield
    finally:
        for m, buffers in before:
            changed = [k for k, t in buffers.items() if m._buffers.get(k) is not t]
            if changed:
                assigned = type(m).__name__, changed[0]
                m._buffers.clear()
                m._buffers.update(buffers)
    if assigned:
        raise NotImplementedError(
            f"export: {assigned[0]} assigns its buffer {assigned[1]}, which a graph does not do: write into "
            f"it, as in self.{assigned[1]}.copy_(...)"
        )


def _in_order(value: object, spec: TreeSpec) -> Any:
    """The value with the entries of its dicts in the order of those that a graph was recorded with."""
    children = spec.children_specs
    if spec.type is dict and type(value) is dict and value.keys() == {*spec.context}:
        return {k: _in_order(value[k], s) for k, s in zip(spec.context, children, strict=True)}
    if spec.type in (tuple, list) and type(value) is spec.type and len(value) == len(children):
        return spec.type(_in_order(v, s) for v, s in zip(value, children, strict=True))
    return value


class GraphFunction:
    """A graph with the nesting of its arguments and results. Arguments that are no tensors are part of it.

    Attributes:
        graph: the `_C._OpGraph`.
        in_spec, out_spec: the trees of (args, kwargs) and of the result.
        in_values, out_values: the leaves of these that are no tensors, by place.
        names: of the positional arguments.
        state: what is known of the graph's named constants: "transient" are those that no state_dict has,
            "fixed" parameters that require no gradient, "aliases" further names.
        sizes_told, number_of_dims_told: whether the function asked for these of its tensors.
    """

    sizes_told = number_of_dims_told = True

    def __init__(
        self,
        graph: Any,
        in_spec: TreeSpec,
        out_spec: TreeSpec,
        in_values: dict[int, Any],
        out_values: dict[int, Any],
        names: list[str] | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.graph = graph
        self.in_spec, self.out_spec = in_spec, out_spec
        self.in_values, self.out_values = in_values, out_values
        self.names, self.state = names or [], state or {}
        self._nesting = repr(in_spec)

    def with_graph(self, graph: Any) -> GraphFunction:
        """The same function by another graph.

        Args:
            graph: of the same inputs and outputs.
        """
        copied = copy.copy(self)
        copied.graph = graph
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphFunction:
        graph = self.graph.copy()
        for number, tensor in graph.constants.items():
            graph.set_constant(number, copy.deepcopy(tensor, memo))
        return self.with_graph(graph)

    def tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The graph's inputs, of arguments nested as those that it was recorded with.

        Raises:
            TypeError: another nesting.
            ValueError: another value of what is no tensor.
        """
        leaves, spec = tree_flatten((args, kwargs))
        if repr(spec) != self._nesting:
            leaves, spec = tree_flatten(self._as_recorded(args, kwargs))
        if repr(spec) != self._nesting:
            raise TypeError(f"the graph was recorded with arguments {self.in_spec}, got {spec}")
        for i, value in self.in_values.items():
            if isinstance(leaves[i], Tensor) or leaves[i] != value:
                raise ValueError(f"the graph was recorded with {value!r} as argument {i}, got {leaves[i]!r}")
        return [x for i, x in enumerate(leaves) if i not in self.in_values]

    def _as_recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments by position or name, and entries of dicts, as they were when the graph was recorded."""
        wanted, named = self.in_spec.children_specs
        by_name = dict(kwargs)
        if len(args) > wanted.num_children:
            return args, kwargs
        for name in self.names[len(args) : wanted.num_children]:
            if name not in by_name:
                return args, kwargs
            args = (*args, by_name.pop(name))
        return _in_order(args, wanted), _in_order(by_name, named)

    def run(self, tensors: list[Tensor], constants: list[tuple[int, Tensor]]) -> Any:
        """Runs the graph.

        Args:
            tensors: its inputs.
            constants: (number, tensor) pairs that take the place of the graph's constants.

        Returns:
            The result, nested as the function's was.
        """
        results = iter(self.graph.run(tensors, constants))
        count = self.out_spec.num_leaves
        leaves = [self.out_values[i] if i in self.out_values else next(results) for i in range(count)]
        return tree_unflatten(leaves, self.out_spec)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the graph for these arguments, nested as the function returned them."""
        return self.run(self.tensors(args, kwargs), [])

    def optimised(self, **options: bool) -> tuple[GraphFunction, dict[str, int]]:
        """A copy after the passes of csrc/graph/passes/passes.h, and how many calls each of these changed.

        Raises:
            TypeError: an option that is none.
        """
        graph = self.graph.copy()
        counts = graph.optimise(**options)
        return self.with_graph(graph), counts

    def to_bytes(self, **more: Any) -> bytes:
        """The graph as a file's contents.

        Raises:
            NotImplementedError: arguments or results in containers of a user's own.
        """
        spec = {
            "in": _encode(self.in_spec),
            "out": _encode(self.out_spec),
            "in_values": [[i, v] for i, v in self.in_values.items()],
            "out_values": [[i, v] for i, v in self.out_values.items()],
            "names": self.names,
            "state": self.state,
            **more,
        }
        try:
            return self.graph.to_bytes(json.dumps(spec))
        except TypeError as error:
            raise NotImplementedError(
                f"a file of a graph holds numbers, strings and tensors: {error}"
            ) from None

    @staticmethod
    def from_bytes(data: bytes) -> tuple[GraphFunction, dict[str, Any]]:
        """The function of a file's contents, and what else was given to `to_bytes`.

        Raises:
            ValueError: what is wrong with the file.
            NotImplementedError: an op that is not there, or has other arguments than the file says.
        """
        graph, text = _C._OpGraph.from_bytes(data)
        try:
            spec = json.loads(text)
            taken, returned = ({int(i): v for i, v in spec.pop(k)} for k in ("in_values", "out_values"))
            nesting = _decode(spec.pop("in")), _decode(spec.pop("out"))
            names, state = [*spec.pop("names", [])], dict(spec.pop("state", {}))
            function = GraphFunction(graph, *nesting, taken, returned, names, state)
            wanted = function.in_spec.num_leaves, function.out_spec.num_leaves
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"graph: the file does not say how arguments are nested: {error!r}") from None
        places = [
            [k for k in range(n) if k not in values]
            for n, values in zip(wanted, (taken, returned), strict=True)
        ]
        if (*map(len, places),) != (len(graph.inputs), len(graph.outputs)):
            raise ValueError("graph: the file's arguments are not those of its graph")
        return function, spec


def _encode(spec: TreeSpec) -> Any:
    if spec.is_leaf():
        return "*"
    name = next((name for name, kind in _CONTAINERS.items() if spec.type is kind), None)
    if name is None:
        raise NotImplementedError(f"a graph's file holds tuples, lists and dicts, not {spec.type}")
    keys = list(spec.context) if name == "dict" else None
    return [name, keys, [_encode(child) for child in spec.children_specs]]


def _decode(spec: Any) -> TreeSpec:
    if spec == "*":
        return LeafSpec()
    name, keys, children = spec
    examples = [tree_unflatten(range(s.num_leaves), s) for s in map(_decode, children)]
    tree = dict(zip(keys, examples, strict=True)) if name == "dict" else _CONTAINERS[name](examples)
    return tree_flatten(tree)[1]


def record(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    strict: bool = False,
    any_sizes: bool = False,
) -> GraphFunction:
    """The graph of the ops that fn(*args, **kwargs) calls, run once.

    Args:
        strict: reading a tensor's value is an error; otherwise it is warned of.
        any_sizes: the graph is for inputs of any sizes: what Python decides by a size is an error.

    Raises:
        RuntimeError: a value that is read, in strict mode; a result that is no tensor, number or string.
        NotImplementedError: a backward pass, a draw from a generator of the caller's, memory that is read or
            written by other means than ops, or a size that depends on values.
    """
    leaves, in_spec = tree_flatten((args, kwargs or {}))
    _C.clear_autocast_cache()  # what was cast for somebody else would be a constant
    tracer = _C._Tracer([x for x in leaves if isinstance(x, Tensor)])
    try:
        tracer.reads_are_errors = strict
        if any_sizes:
            tracer.forget_input_sizes()
        known: dict[int, str] = {}
        aliases = {}
        for name, tensor in _named_tensors(fn):
            if known.setdefault(id(tensor), name) == name:
                tracer.set_name(tensor, name)
            else:
                aliases[name] = known[id(tensor)]
        own = iter(tracer.inputs)
        positional, named = tree_unflatten(
            [next(own) if isinstance(x, Tensor) else x for x in leaves], in_spec
        )
        with _same_buffers(fn):
            results, out_spec = tree_flatten(fn(*positional, **named))
        for x in results:
            if not isinstance(x, (Tensor, int, float, complex, str, type(None))):
                raise RuntimeError(f"a graph returns tensors, numbers and strings, not {type(x).__name__}")
        graph = tracer.finish([x for x in results if isinstance(x, Tensor)])
        read = {graph.values[i][3] for i in graph.constants}
        for name, tensor in _named_tensors(fn):  # a state_dict has them all
            if name not in read and name not in aliases:
                graph.add_constant(name, tensor)
    finally:
        tracer.end()
        _C.clear_autocast_cache()
    fixed = [n for n, t in _named_tensors(fn) if isinstance(t, Parameter) and not t.requires_grad]
    in_values, out_values = (
        {i: x for i, x in enumerate(list_) if not isinstance(x, Tensor)} for list_ in (leaves, results)
    )
    state = {"transient": _transient(fn), "fixed": fixed, "aliases": aliases}
    function = GraphFunction(
        graph, in_spec, out_spec, in_values, out_values, positional_names(fn, args), state
    )
    function.sizes_told, function.number_of_dims_told = tracer.sizes_told, tracer.number_of_dims_told
    return function


def _other_values(x: object, change: str) -> Any:
    if not isinstance(x, Tensor):
        return x
    other = x.detach()
    if change == "numbers":
        return other * 1.25 + 0.125 if x.is_floating_point() or x.is_complex() else other
    if change == "integers":
        return (
            other if x.is_floating_point() or x.is_complex() else ~other if x.dtype == wt.bool else other + 1
        )
    return other.roll(1, -1) if x.dim() else other


def check_constants(
    fn: Callable[..., Any], recorded: GraphFunction, args: tuple[Any, ...], kwargs: dict
) -> None:
    """Records `fn` again on inputs of other values and compares the graphs.

    Raises:
        NotImplementedError: a tensor that no op made, or the course of calls, depends on the inputs.
    """
    leaves, spec = tree_flatten((args, kwargs))
    for change in ("order", "numbers", "integers"):
        other_args, other_kwargs = tree_unflatten([_other_values(x, change) for x in leaves], spec)
        try:
            again = record(fn, other_args, other_kwargs)
        except (RuntimeError, ValueError, IndexError, AssertionError):
            if change == "order":
                raise
            continue  # not values that the function takes
        _C._check_trace(recorded.graph, again.graph, [])
        check_results(recorded, again, "values")


def check_results(recorded: GraphFunction, again: GraphFunction, others: str) -> None:
    """Compares the parts of two recordings' results that are no tensors.

    Args:
        recorded, again: the two recordings.
        others: what differs between them, for the text of the error.

    Raises:
        NotImplementedError: the two differ.
    """
    if recorded.out_spec != again.out_spec or recorded.out_values != again.out_values:
        raise NotImplementedError(
            f"export: a result that is no tensor depends on the {others} of the inputs: it is "
            f"{[*recorded.out_values.values()]} and {[*again.out_values.values()]}; return a tensor"
        )


class GraphModule(Module):
    """A module that runs a graph. Its parameters and buffers have the names that the recorded module gave;
    the graph reads them where the module has them.

    Without `trained`, which says what is a parameter, it has none of both: its graph is frozen.
    """

    def __init__(self, function: GraphFunction, trained: Callable[[str, Tensor], bool] | None) -> None:
        super().__init__()
        self.__dict__["_recorded"] = function
        # By number: the dict of a module, the name in it, and the tensor that the graph has itself.
        self.__dict__["_constants"] = []
        if trained is None:
            return
        graph, state = function.graph, function.state
        values, fixed = graph.values, {*state.get("fixed", ())}
        transient, of_name = {*state.get("transient", ())}, {}
        for number, tensor in graph.constants.items():
            name = values[number][3]
            if trained(name, tensor) and not isinstance(tensor, Parameter):
                learns = name not in fixed and (tensor.is_floating_point() or tensor.is_complex())
                tensor = Parameter(tensor, requires_grad=learns)
                graph.set_constant(number, tensor)
            literal = name == f"constant_{number}"  # no state_dict has it
            space, last = self._place(name, tensor, literal or name in transient)
            self._constants.append((number, space, last, tensor))
            of_name[name] = tensor
        for name, first in state.get("aliases", {}).items():
            if first in of_name:
                self._place(name, of_name[first], name in transient)

    def _place(self, name: str, tensor: Tensor, transient: bool) -> tuple[dict[str, Any], str]:
        """Registers a tensor, whatever attributes modules have; the dict that it is in, and its key."""
        *path, last = name.split(".")
        owner: Module = self
        for part in path:
            owner = owner._modules.setdefault(part, Module())  # type: ignore[assignment]
        space: dict[str, Any] = owner._parameters if isinstance(tensor, Parameter) else owner._buffers
        space[last] = tensor
        if transient:
            owner._non_persistent_buffers_set.add(last)
        return space, last

    def _replaced(self) -> list[tuple[int, Tensor]]:
        """The constants for which the module has another tensor than the graph."""
        out = []
        for number, space, name, tensor in self._constants:
            if (now := space.get(name)) is not tensor:
                if now is None:
                    raise RuntimeError(f"the graph reads {name}, which was taken out of the module")
                out.append((number, now))
        return out

    def _current(self) -> GraphFunction:
        """The function with the tensors that the module has."""
        replaced = self._replaced()
        if not replaced:
            return self._recorded
        graph = self._recorded.graph.copy()
        for number, tensor in replaced:
            graph.set_constant(number, tensor)
        return self._recorded.with_graph(graph)

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphModule:
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        copied.__dict__.update(
            copy.deepcopy({k: v for k, v in self.__dict__.items() if k != "_constants"}, memo)
        )
        # The memo has the copies of the dicts that the tensors are in, and of the tensors.
        copied.__dict__["_constants"] = [
            (number, memo[id(space)], name, copy.deepcopy(tensor, memo))
            for number, space, name, tensor in self._constants
        ]
        return copied

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the graph."""
        function = self._recorded
        return function.run(function.tensors(args, kwargs), self._replaced())
