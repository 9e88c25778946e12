"""Graphs of ops as Python calls them: recorded from a function, with nested arguments, in files, as modules.

`torch.export`, `torch.jit.trace` and `torch.onnx.export` stand on it. The graph itself, which needs no Python
to run, is `_C._OpGraph` (csrc/graph/graph.h).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from . import _C
from ._tensor import Tensor
from .nn import Module, Parameter
from .utils._pytree import LeafSpec, TreeSpec, tree_flatten, tree_unflatten

_CONTAINERS = {"tuple": tuple, "list": list, "dict": dict}


def named_tensors(fn: Any) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of a module; nothing for a function."""
    owner = fn if isinstance(fn, Module) else getattr(fn, "__self__", None)
    if isinstance(owner, Module):
        yield from owner.named_parameters()
        yield from owner.named_buffers()


class GraphFunction:
    """A graph with the nesting of its arguments and results. Arguments that are no tensors are part of it.

    Attributes:
        graph: the `_C._OpGraph`.
        in_spec, out_spec: the trees of (args, kwargs) and of the result.
        in_values, out_values: the leaves of these that are no tensors, by place.
    """

    def __init__(
        self,
        graph: Any,
        in_spec: TreeSpec,
        out_spec: TreeSpec,
        in_values: dict[int, Any],
        out_values: dict[int, Any],
    ) -> None:
        self.graph = graph
        self.in_spec, self.out_spec = in_spec, out_spec
        self.in_values, self.out_values = in_values, out_values

    def tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The graph's inputs, of arguments nested as those that it was recorded with.

        Raises:
            TypeError: another nesting.
            ValueError: another value of what is no tensor.
        """
        leaves, spec = tree_flatten((args, kwargs))
        if repr(spec) != repr(self.in_spec):
            raise TypeError(f"the graph was recorded with arguments {self.in_spec}, got {spec}")
        for i, value in self.in_values.items():
            if isinstance(leaves[i], Tensor) or leaves[i] != value:
                raise ValueError(f"the graph was recorded with {value!r} as argument {i}, got {leaves[i]!r}")
        return [x for i, x in enumerate(leaves) if i not in self.in_values]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        results = iter(self.graph.run(self.tensors(args, kwargs)))
        count = self.out_spec.num_leaves
        leaves = [self.out_values[i] if i in self.out_values else next(results) for i in range(count)]
        return tree_unflatten(leaves, self.out_spec)

    def optimised(self, **options: bool) -> tuple[GraphFunction, dict[str, int]]:
        """A copy after the passes of csrc/graph/passes.h, and how many calls each of these changed.

        Raises:
            TypeError: an option that is none.
        """
        graph = self.graph.copy()
        counts = graph.optimise(**options)
        return GraphFunction(graph, self.in_spec, self.out_spec, self.in_values, self.out_values), counts

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
            function = GraphFunction(graph, *nesting, taken, returned)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"graph: the file does not say how arguments are nested: {error!r}") from None
        tensors = (
            function.in_spec.num_leaves - len(function.in_values),
            function.out_spec.num_leaves - len(function.out_values),
        )
        if tensors != (len(graph.inputs), len(graph.outputs)):
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
) -> GraphFunction:
    """The graph of the ops that fn(*args, **kwargs) calls, run once.

    Args:
        strict: reading a tensor's value is an error; otherwise it is warned of.

    Raises:
        RuntimeError: a value that is read, in strict mode; a result that is no tensor, number or string.
        NotImplementedError: a backward pass, or a draw from a generator of the caller's.
    """
    leaves, in_spec = tree_flatten((args, kwargs or {}))
    tracer = _C._Tracer([x for x in leaves if isinstance(x, Tensor)])
    try:
        tracer.reads_are_errors = strict
        for name, tensor in named_tensors(fn):
            tracer.set_name(tensor, name)
        results, out_spec = tree_flatten(fn(*args, **(kwargs or {})))
        for x in results:
            if not isinstance(x, (Tensor, int, float, complex, str, type(None))):
                raise RuntimeError(f"a graph returns tensors, numbers and strings, not {type(x).__name__}")
        graph = tracer.finish([x for x in results if isinstance(x, Tensor)])
    finally:
        tracer.end()
    in_values, out_values = (
        {i: x for i, x in enumerate(list_) if not isinstance(x, Tensor)} for list_ in (leaves, results)
    )
    return GraphFunction(graph, in_spec, out_spec, in_values, out_values)


def check_constants(
    fn: Callable[..., Any], recorded: GraphFunction, args: tuple[Any, ...], kwargs: dict
) -> None:
    """Records `fn` again on inputs of other values and compares the graphs.

    Raises:
        NotImplementedError: a tensor that no op made, or the course of calls, depends on the inputs.
    """
    leaves, spec = tree_flatten((args, kwargs))
    other = [x.detach().roll(1, -1) if isinstance(x, Tensor) and x.dim() else x for x in leaves]
    args, kwargs = tree_unflatten(other, spec)
    _C._check_trace(recorded.graph, record(fn, args, kwargs).graph, [])


class GraphModule(Module):
    """A module that runs a graph. Its parameters and buffers have the names that the recorded module gave.

    Without `trained`, which says what is a parameter, it has none of both: its graph is frozen.
    """

    def __init__(self, function: GraphFunction, trained: Callable[[str, Tensor], bool] | None) -> None:
        super().__init__()
        self.__dict__["function"] = function
        constants, values = function.graph.constants if trained else {}, function.graph.values
        self.__dict__["_places"] = {}
        for number, tensor in constants.items():
            name = values[number][3]
            *path, last = name.split(".")
            owner: Module = self
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, Module())
                owner = owner._modules[part]  # type: ignore[assignment]
            if trained and trained(name, tensor):
                owner.register_parameter(last, tensor if isinstance(tensor, Parameter) else Parameter(tensor))
            else:
                owner.register_buffer(last, tensor)
            self._places[number] = (owner, last)
        self._rebind()

    def _rebind(self) -> None:
        for number, (owner, name) in self._places.items():
            self.function.graph.set_constant(number, getattr(owner, name))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._rebind()  # buffers, and what a conversion of dtypes replaced
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the graph."""
        return self.function(*args, **kwargs)

    @property
    def parameter_names(self) -> list[str]:
        """The names of the constants that are parameters."""
        return [name for name, _ in self.named_parameters()]
