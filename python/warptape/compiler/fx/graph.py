"""Graph: the steps of a program, in order."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from warptape import nn

from ...core import pytree
from ._codegen import CodeWriter, Namespace, PythonCode, PyTreeInfo, name_of_target
from .node import Argument, Node, Target, map_aggregate, map_arg

__all__ = ["Graph", "PythonCode"]


class _node_list:
    """The nodes, in order; they may be changed while one goes over them."""

    def __init__(self, root: Node, length: Callable[[], int]) -> None:
        self._root, self._length = root, length

    def __len__(self) -> int:
        return self._length()

    def __iter__(self) -> Iterator[Node]:
        node = self._root._next
        while node is not self._root:
            if not node._erased:
                yield node
            node = node._next

    def __reversed__(self) -> Iterator[Node]:
        node = self._root._prev
        while node is not self._root:
            if not node._erased:
                yield node
            node = node._prev


class _InsertPoint:
    """Where new nodes go, until the `with` block ends."""

    def __init__(self, graph: Graph, insert: Callable[[Node], None]) -> None:
        self._graph, self._before = graph, graph._insert
        graph._insert = insert

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: Any) -> None:
        self._graph._insert = self._before


class Graph:
    """Nodes in an order in which they can run: placeholders first, the output last.

    Args:
        owning_module: whose parameters and modules it names.
        tracer_cls: of the tracer that made it.
        tracer_extras: of that tracer.

    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> result = graph.output(graph.call_function(torch.relu, (x,)))
    >>> torch.fx.GraphModule({}, graph)(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    def __init__(
        self,
        owning_module: nn.Module | None = None,
        tracer_cls: type | None = None,
        tracer_extras: dict[str, Any] | None = None,
    ) -> None:
        self._root = Node(self, "", "root", "", (), {})
        self._insert: Callable[[Node], None] = self._root.prepend
        self._namespace = Namespace()
        self._length = 0
        #: The GraphModule that has this graph, the last one where there are several.
        self.owning_module = owning_module
        self._tracer_cls, self._tracer_extras = tracer_cls, tracer_extras
        self._pytree_info: PyTreeInfo | None = None

    @property
    def nodes(self) -> _node_list:
        """The nodes, in order."""
        return _node_list(self._root, lambda: self._length)

    def output_node(self) -> Node:
        """The node that returns the results."""
        return next(node for node in reversed(self.nodes) if node.op == "output")

    def find_nodes(self, *, op: str, target: Target | None = None, sort: bool = True) -> list[Node]:
        """The nodes of an op, and of a target where one is given; for functions there must be one.

        Args:
            op: as "call_function".
            target: None for any.
            sort: without effect: they always come in order.
        """
        if op == "call_function" and target is None:
            raise AssertionError("target must not be None for call_function op")
        return [n for n in self.nodes if n.op == op and (target is None or n.target == target)]

    # --- new nodes ---

    def create_node(
        self,
        op: str,
        target: Target,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        name: str | None = None,
        type_expr: object = None,
    ) -> Node:
        """A new node at the insert point: the end, unless `inserting_before` or `_after` says else.

        Args:
            op: as "call_function".
            target: a function, or a name.
            args, kwargs: nodes and plain values.
            name: a proposal.
            type_expr: of the result.
        """
        args, kwargs = () if args is None else args, {} if kwargs is None else kwargs
        if not isinstance(args, tuple):
            raise AssertionError(f"args must be a tuple, got {type(args)}")
        if not isinstance(kwargs, dict):
            raise AssertionError(f"kwargs must be a dict, got {type(kwargs)}")
        node = Node(self, "", op, target, args, kwargs, type_expr)
        node.name = self._namespace.create_name(name_of_target(target) if name is None else name)
        self._insert(node)
        self._length += 1
        return node

    def placeholder(self, name: str, type_expr: object = None, default_value: object = ...) -> Node:
        """An argument of the graph; without `default_value` it must be given.

        Args:
            name: of the argument.
            type_expr: of the argument.
            default_value: what it is where none is given.
        """
        args = () if default_value is ... else (default_value,)
        return self.create_node("placeholder", name, args, {}, type_expr=type_expr)

    def get_attr(self, qualified_name: str, type_expr: object = None) -> Node:
        """Reads a parameter, buffer or other attribute of the module.

        Args:
            qualified_name: as "layer.weight".
            type_expr: of the value.
        """
        owner = self.owning_module
        if owner is not None and not _has_attr(owner, qualified_name):
            warnings.warn(
                "Attempted to insert a get_attr Node with no underlying reference in the owning GraphModule! "
                "Call GraphModule.add_submodule to add the necessary submodule, GraphModule.add_parameter to "
                "add the necessary Parameter, or nn.Module.register_buffer to add the necessary buffer",
                stacklevel=2,
            )
        return self.create_node("get_attr", qualified_name, (), {}, type_expr=type_expr)

    def call_module(
        self,
        module_name: str,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: object = None,
    ) -> Node:
        """Calls a submodule.

        Args:
            module_name: its path.
            args, kwargs: nodes and plain values.
            type_expr: of the result.
        """
        if self.owning_module is not None:
            self.owning_module.get_submodule(module_name)
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def call_method(
        self,
        method_name: str,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: object = None,
    ) -> Node:
        """Calls a method of the first argument.

        Args:
            method_name: of the first argument.
            args, kwargs: nodes and plain values.
            type_expr: of the result.
        """
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_function(
        self,
        the_function: Callable[..., Any],
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: object = None,
        name: str | None = None,
    ) -> Node:
        """Calls a function.

        Args:
            the_function: what is called.
            args, kwargs: nodes and plain values.
            type_expr: of the result.
            name: a proposal.
        """
        return self.create_node("call_function", the_function, args, kwargs, name, type_expr)

    def output(self, result: Argument, type_expr: object = None) -> Node:
        """What the graph returns.

        Args:
            result: nodes, also in containers.
            type_expr: of the result.
        """
        return self.create_node("output", "output", (result,), type_expr=type_expr)

    def node_copy(self, node: Node, arg_transform: Callable[[Node], Argument] = lambda n: n) -> Node:
        """A copy of a node, of this or another graph, with arg_transform(n) for every node that it takes.

        Args:
            node: what is copied.
            arg_transform: maps nodes.
        """
        args, kwargs = map_arg(node.args, arg_transform), map_arg(node.kwargs, arg_transform)
        copied = self.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        copied.meta = copy.copy(node.meta)
        return copied

    def graph_copy(self, g: Graph, val_map: dict[Node, Node], return_output_node: bool = False) -> Any:
        """Copies all nodes of `g`, but for the output and what `val_map` has; records the copies there.

        Returns:
            What `g` returns, in nodes of this graph; with `return_output_node` also g's output itself.
        """
        for node in g.nodes:
            if node.op == "output":
                result = map_arg(node.args[0], val_map.__getitem__)
                return (result, node) if return_output_node else result
            if node not in val_map:
                val_map[node] = self.node_copy(node, val_map.__getitem__)
        return None

    # --- editing ---

    def inserting_before(self, n: Node | None = None) -> _InsertPoint:
        """Within `with`, new nodes go before `n`, or before all.

        Args:
            n: of this graph.
        """
        if n is None:
            return self.inserting_after(self._root)
        if n.graph is not self:
            raise AssertionError("Node to insert before is not in graph.")
        return _InsertPoint(self, n.prepend)

    def inserting_after(self, n: Node | None = None) -> _InsertPoint:
        """Within `with`, new nodes go directly behind `n`, or behind all.

        Args:
            n: of this graph.
        """
        if n is None:
            return self.inserting_before(self._root)
        if n.graph is not self:
            raise AssertionError("Node to insert after is not in graph.")
        return _InsertPoint(self, n.append)

    def erase_node(self, to_erase: Node) -> None:
        """Takes a node out.

        Raises:
            RuntimeError: another node uses it, or it is of another graph.
        """
        if to_erase.users:
            raise RuntimeError(
                f"Tried to erase Node {to_erase} but it still had {len(to_erase.users)} users in the graph: "
                f"{to_erase.users}!"
            )
        if to_erase.graph is not self:
            raise RuntimeError(f"Attempting to remove {to_erase} from wrong graph!")
        if to_erase._erased:
            warnings.warn(f"erase_node({to_erase}) on an already erased node", stacklevel=2)
            return
        to_erase._remove_from_list()
        to_erase._erased = True
        self._length -= 1
        to_erase._set_arguments((), {})

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Erases the nodes without users and without effects; True where there was one.

        Args:
            is_impure_node: says which nodes stay.
        """
        self.lint()
        impure = is_impure_node or Node.is_impure
        before = len(self.nodes)
        for node in reversed(self.nodes):
            if not node.users and not impure(node):
                self.erase_node(node)
        return len(self.nodes) < before

    def lint(self) -> None:
        """Checks the order of the nodes, their names, and that their targets exist.

        Raises:
            RuntimeError: one of these is wrong.
        """
        seen: set[Node] = set()
        names: set[str] = set()
        for node in self.nodes:
            if node.graph is not self:
                raise RuntimeError(f"Node '{node}' does not belong to this Graph!")
            for argument in node.all_input_nodes:
                if argument.graph is not self:
                    raise RuntimeError(
                        f"Argument '{argument}' of Node '{node}' does not belong to this Graph, but was used "
                        "as an argument! If you are copying nodes from another graph, make sure to use "
                        f"``arg_transform`` on node_copy() to remap values\n{self}"
                    )
                if argument not in seen:
                    raise RuntimeError(
                        f"Argument '{argument}' of Node '{node}' was used before it has been defined! Please "
                        f"check that Nodes in the graph are topologically ordered\n{self}"
                    )
            if node.name in names:
                raise RuntimeError(f"Node redefined name {node.name}!")
            seen.add(node)
            names.add(node.name)
            if self.owning_module is not None and node.op in ("call_module", "get_attr"):
                self._check_target(self.owning_module, node)

    @staticmethod
    def _check_target(owner: nn.Module, node: Node) -> None:
        if not _has_attr(owner, node.target):
            raise RuntimeError(
                f"Node {node} target {node.target} references nonexistent attribute of the owning module"
            )
        value = _fetch(owner, node.target)
        if node.op == "call_module" and not isinstance(value, nn.Module):
            raise RuntimeError(
                f"Node {node} target {node.target} {type(value)} does not reference an nn.Module"
            )

    # --- as text and as code ---

    def python_code(self, root_module: str, *, verbose: bool = False) -> PythonCode:
        """Source of `forward`, with `root_module` for its first argument.

        Args:
            root_module: as "self".
            verbose: whether notes say where nodes were recorded.
        """
        return CodeWriter(self, root_module, verbose).write()

    def print_tabular(self) -> None:
        """Prints a table of the nodes."""
        heads = ("opcode", "name", "target", "args", "kwargs")
        rows = [[str(x) for x in (n.op, n.name, n.target, n.args, n.kwargs)] for n in self.nodes]
        widths = [max(map(len, column)) for column in zip(heads, *rows)]
        for row in (heads, ["-" * width for width in widths], *rows):
            print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())

    def __str__(self) -> str:
        return "\n    ".join(["graph():", *(node.format_node() for node in self.nodes)])

    def process_inputs(self, *args: Any) -> tuple[Any, ...]:
        """The values of the placeholders for arguments as the generated function takes them.

        Args:
            *args: of the generated function.
        """
        if self._pytree_info is None:
            return args
        return tuple(pytree.tree_leaves(args))

    def process_outputs(self, out: object) -> Any:
        """What the generated function returns for the value of the output.

        Args:
            out: of the output node.
        """
        if self._pytree_info is None or self._pytree_info.out_spec is None:
            return out
        return pytree.tree_unflatten(
            out if isinstance(out, list | tuple) else [out], self._pytree_info.out_spec
        )

    # --- copies ---

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        copied = Graph(tracer_cls=self._tracer_cls, tracer_extras=self._tracer_extras)
        copied._pytree_info = self._pytree_info
        copies: dict[Node, Node] = {}
        for node in self.nodes:
            copies[node] = memo[id(node)] = copied.node_copy(node, copies.__getitem__)
        memo[id(self)] = copied
        for node in copies.values():
            node.meta = copy.deepcopy(node.meta, memo)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        places = {node: i for i, node in enumerate(self.nodes)}
        flat = lambda a: map_arg(a, lambda node: _Place(places[node]))
        rows = [
            (n.op, n.target, flat(n.args), flat(n.kwargs), n.name, n.type, "is_wrapped" in n.meta)
            for n in self.nodes
        ]
        return _rebuild, (rows, self._pytree_info)


class _Place(int):
    """Stands for a node of a pickled graph, by its number."""


def _rebuild(rows: Iterable[Any], info: PyTreeInfo | None) -> Graph:
    graph = Graph()
    graph._pytree_info = info
    nodes: list[Node] = []
    for op, target, args, kwargs, name, kind, is_wrapped in rows:
        linked = lambda a: map_aggregate(a, lambda x: nodes[x] if isinstance(x, _Place) else x)
        node = graph.create_node(op, target, linked(args), linked(kwargs), name, kind)
        node.meta = {"is_wrapped": True} if is_wrapped else {}
        nodes.append(node)
    return graph


def _fetch(module: object, target: str) -> Any:
    """The attribute of a dotted name. AttributeError where there is none."""
    for name in target.split("."):
        module = getattr(module, name)
    return module


def _has_attr(module: object, target: str) -> bool:
    try:
        _fetch(module, target)
    except AttributeError:
        return False
    return True
