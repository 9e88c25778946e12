"""A model's graph for TensorBoard: what the tape records of a call, in the scopes of the model's modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core import Tensor
from warptape.core.pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from warptape.nn import Module


def _recorded(values: Any) -> list[Tensor]:
    return [t for t in tree_leaves(values) if isinstance(t, Tensor) and t.grad_fn is not None]


class _Scopes:
    """In which module's forward, the innermost one, each node of the tape was recorded."""

    def __init__(self, model: Module) -> None:
        self.of: dict[Any, str] = {}
        self.shapes: dict[Any, tuple[int, ...]] = {}
        self.names: dict[int, str] = {}  # of parameters, by id
        self._before: list[set[Any]] = []  # per running module, what its arguments come from
        self.handles: list[Any] = []
        self._enter_tree(model, type(model).__name__)

    def _enter_tree(self, module: Module, scope: str) -> None:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                self.names.setdefault(id(parameter), f"{scope}/{name}")
        self.handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
        leave = self._leaving(scope)
        self.handles.append(module.register_forward_hook(leave, with_kwargs=True))
        for name, child in module.named_children():
            self._enter_tree(child, f"{scope}/{type(child).__name__}[{name}]")

    def _enter(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._before.append({t.grad_fn for t in _recorded((args, kwargs))})

    def _leaving(self, scope: str) -> Any:
        def leave(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            before = self._before.pop()
            recorded = _recorded(output)
            self.shapes.update((t.grad_fn, tuple(t.shape)) for t in recorded)
            waiting = [t.grad_fn for t in recorded]
            while waiting:
                node = waiting.pop()
                if node is None or node in before or node in self.of:
                    continue
                self.of[node] = scope
                waiting.extend(n for n, _ in node.next_functions)

        return leave


def _ordered(roots: Iterable[Any], known: Iterable[Any]) -> Iterator[Any]:
    """The nodes between `known` and `roots`, what a node takes before the node."""
    seen = {*known}
    stack = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((n, False) for n, _ in node.next_functions if n is not None)


def _node(name: str, op: str, inputs: Iterable[str], shape: Iterable[int] | None) -> Any:
    from tensorboard.compat.proto.attr_value_pb2 import AttrValue
    from tensorboard.compat.proto.node_def_pb2 import NodeDef
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

    node = NodeDef(name=name, op=op, input=list(inputs))
    if shape is not None:
        sizes = TensorShapeProto(dim=[TensorShapeProto.Dim(size=n) for n in shape])
        node.attr["_output_shapes"].CopyFrom(AttrValue(list=AttrValue.ListValue(shape=[sizes])))
    return node


def _called(model: Module, args: tuple[Any, ...]) -> tuple[_Scopes, list[Any]]:
    """One call in evaluation mode, recorded; the model is afterwards as it was."""
    modes = {module: module.training for module in model.modules()}
    scopes = _Scopes(model)
    try:
        model.eval()
        with wt.enable_grad():
            return scopes, _recorded(model(*args))
    finally:
        for handle in scopes.handles:
            handle.remove()
        for module, training in modes.items():
            module.training = training


def graph_of(model: Module, input_to_model: Any) -> Any:
    """The GraphDef of `model(*input_to_model)`, or of `model(input_to_model)` for what is no tuple or list.

    It has what the tape records: no op that no gradient flows through.

    Raises:
        RuntimeError: nothing was recorded.
    """
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    from tensorboard.compat.proto.versions_pb2 import VersionDef

    def watched(value: Any) -> Any:  # not a leaf, for the model may write to its input
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            with wt.enable_grad():
                return value.detach().requires_grad_().clone()
        return value

    args = tuple(input_to_model) if isinstance(input_to_model, tuple | list) else (input_to_model,)
    args = tree_map(watched, args)
    tensors = [t for t in tree_leaves(args) if isinstance(t, Tensor)]
    clones = [t.grad_fn for t in tensors]
    scopes, outputs = _called(model, args)
    if not outputs:
        raise RuntimeError("add_graph: no output of the model has a grad_fn, so nothing was recorded")
    nodes = [_node(f"input/input.{i}", "IO Node", (), t.shape) for i, t in enumerate(tensors)]
    of_node = {clone: f"input/input.{i}" for i, clone in enumerate(clones) if clone is not None}
    for node in _ordered((t.grad_fn for t in outputs), of_node.keys()):
        kind = node.name().removesuffix("Backward0")
        leaf = getattr(node, "variable", None)
        place = scopes.of.get(node, type(model).__name__)
        if leaf is not None:
            kind = "Parameter" if id(leaf) in scopes.names else "Constant"
        known = scopes.names.get(id(leaf)) if leaf is not None else None
        of_node[node] = known or f"{place}/{kind}_{len(of_node)}"
        taken = [(of_node[n], i) for n, i in node.next_functions if n is not None]
        shape = scopes.shapes.get(node) if leaf is None else leaf.shape
        nodes.append(_node(of_node[node], kind, (f"{n}:{i}" if i else n for n, i in taken), shape))
    for i, t in enumerate(outputs):
        nodes.append(_node(f"output/output.{i}", "IO Node", [of_node[t.grad_fn]], t.shape))
    return GraphDef(node=nodes, versions=VersionDef(producer=22))
