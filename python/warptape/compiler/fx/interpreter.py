"""Interpreter: runs a graph node by node. Transformer: makes a graph of another one in this way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from warptape import nn

from ._symbolic_trace import Tracer
from .graph import Graph, _fetch
from .graph_module import GraphModule
from .node import Argument, Node, Target, map_aggregate, map_arg
from .proxy import Proxy

__all__ = ["Interpreter", "Transformer"]


class Interpreter:
    """Runs a GraphModule; subclasses override what a node does: `call_function`, `run_node` ..

    Args:
        module: whose parameters and submodules the graph reads.
        garbage_collect_values: whether a value is dropped behind its last use.
        graph: another graph than the module's own.
    """

    def __init__(
        self, module: nn.Module, garbage_collect_values: bool = True, graph: Graph | None = None
    ) -> None:
        self.module: Any = module
        self.submodules = dict(module.named_modules())
        self.graph: Graph = graph if graph is not None else self.module.graph
        self.env: dict[Node, Any] = {}
        self.name = "Interpreter"
        self.garbage_collect_values = garbage_collect_values
        self.extra_traceback = True
        if garbage_collect_values:
            self.user_to_last_uses: dict[Node, list[Node]] = {}
            seen: set[Node] = set()
            for node in reversed(self.graph.nodes):
                ended = [n for n in node.all_input_nodes if n not in seen]
                seen.update(ended)
                self.user_to_last_uses[node] = ended

    def run(
        self, *args: Any, initial_env: dict[Node, Any] | None = None, enable_io_processing: bool = True
    ) -> Any:
        """What the graph returns for the arguments.

        Args:
            initial_env: values of nodes that are known already.
        """
        self.env = dict(initial_env or {})
        self.args_iter: Iterator[Any] = iter(
            self.graph.process_inputs(*args) if enable_io_processing else args
        )
        for node in self.graph.nodes:
            if node in self.env:
                continue
            try:
                self.env[node] = self.run_node(node)
            except Exception as error:
                if self.extra_traceback:
                    where = f"While executing {node.format_node()}\nOriginal traceback:\n{node.stack_trace}"
                    text = f"{error.args[0]}\n\n{where}" if error.args else where
                    error.args = (text, *error.args[1:])
                raise
            if self.garbage_collect_values:
                for ended in self.user_to_last_uses.get(node, []):
                    self.env.pop(ended, None)
            if node.op == "output":
                out = self.env[node]
                return self.graph.process_outputs(out) if enable_io_processing else out
        return None

    def boxed_run(self, args_list: list[Any]) -> Any:
        """run(*args_list), which empties the list, so that the arguments can be freed on the way.

        Args:
            args_list: emptied.
        """
        places = self.graph.find_nodes(op="placeholder")
        if len(places) != len(args_list):
            raise RuntimeError(
                f"Interpreter.boxed_run expected {len(places)} arguments for placeholders but received "
                f"{len(args_list)}"
            )
        env = dict(zip(places, args_list))
        args_list.clear()
        return self.run(initial_env=env)

    def run_node(self, n: Node) -> Any:
        """The value of a node.

        Args:
            n: of the graph.
        """
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return getattr(self, n.op)(n.target, args, kwargs)

    # --- what a node of each kind does ---

    def placeholder(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """The next argument, or the default.

        Args:
            target: its name.
            args: the default, where there is one.
            kwargs: empty.
        """
        if target.startswith("*"):
            return list(self.args_iter)
        value = next(self.args_iter, *args) if args else next(self.args_iter, self)
        if value is self:
            raise RuntimeError(
                f"Expected positional argument for parameter {target}, but one was not passed in!"
            )
        return value

    def get_attr(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """An attribute of the module.

        Args:
            target: its path.
            args, kwargs: empty.
        """
        return self.fetch_attr(target)

    def call_function(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a function.

        Args:
            target: the function.
            args, kwargs: values.
        """
        return target(*args, **kwargs)

    def call_method(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a method of the first argument.

        Args:
            target: its name.
            args, kwargs: values.
        """
        self_obj, *rest = args
        return getattr(self_obj, target)(*rest, **kwargs)

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a submodule.

        Args:
            target: its path.
            args, kwargs: values.
        """
        return self.fetch_attr(target)(*args, **kwargs)

    def output(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """What is returned.

        Args:
            target: "output".
            args: the value.
            kwargs: empty.
        """
        return args[0]

    # --- values ---

    def fetch_attr(self, target: str) -> Any:
        """The attribute of a dotted name. RuntimeError where the module has none.

        Args:
            target: as "layer.weight".
        """
        try:
            return _fetch(self.module, target)
        except AttributeError:
            raise RuntimeError(f"Node referenced nonexistent target {target}") from None

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The values of a node's arguments.

        Args:
            n: of the graph.
        """
        return self.map_nodes_to_values(n.args, n), self.map_nodes_to_values(n.kwargs, n)

    def map_nodes_to_values(self, args: Argument, n: Node) -> Any:
        """`args` with values in place of nodes.

        Args:
            args: nodes, also in containers.
            n: whose arguments they are.
        """

        def load(node: Node) -> Any:
            if node not in self.env:
                raise RuntimeError(
                    f"Node {n} referenced nonexistent value {node}! Run Graph.lint() to diagnose"
                )
            return self.env[node]

        return map_arg(args, load)


class _TransformerTracer(Tracer):
    def __init__(self, graph: Graph, root: nn.Module) -> None:
        super().__init__()
        self.graph, self.root = graph, root
        self.submodule_paths = {module: name for name, module in root.named_modules()}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """All are.

        Args:
            m, module_qualified_name: not looked at.
        """
        return True


class Transformer(Interpreter):
    """Runs a graph on proxies: what the overridden methods do becomes a new graph.

    Args:
        module: whose graph is run.
    """

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.new_graph = Graph()
        self.tracer = _TransformerTracer(self.new_graph, module)

    def placeholder(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Proxy:
        """A placeholder of the new graph.

        Args:
            target: its name.
            args: the default, where there is one.
            kwargs: empty.
        """
        default = args[0] if args else ...
        return Proxy(self.new_graph.placeholder(target, default_value=default), self.tracer)

    def get_attr(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Proxy:
        """A read in the new graph.

        Args:
            target: its path.
            args, kwargs: empty.
        """
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """A call in the new graph.

        Args:
            target: its path.
            args, kwargs: proxies and plain values.
        """
        submodule = self.fetch_attr(target)
        return self.tracer.call_module(submodule, submodule.forward, args, kwargs)

    def call_function(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """A call in the new graph.

        Args:
            target: the function.
            args, kwargs: proxies and plain values.
        """
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def run_node(self, n: Node) -> Any:
        """The proxy of a new node; it is said to come from where `n` does.

        Args:
            n: of the old graph.
        """
        result = super().run_node(n)
        if isinstance(result, Proxy):
            for key in {"nn_module_stack", "stack_trace"} & n.meta.keys():
                result.node.meta.setdefault(key, n.meta[key])
        return result

    def transform(self) -> GraphModule:
        """The module of the new graph."""
        result = super().run(enable_io_processing=False)
        old = self.graph.output_node()
        output = self.new_graph.output(
            map_aggregate(result, lambda x: x.node if isinstance(x, Proxy) else x), old.type
        )
        output.meta.update(old.meta)
        self.new_graph._pytree_info = self.graph._pytree_info
        return GraphModule(self.module, self.new_graph)
