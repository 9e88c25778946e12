"""FxGraphDrawer: pictures of GraphModules, drawn by `warptape.graph_drawing` without Graphviz or pydot."""

from __future__ import annotations

from ....tools.graph_drawing import Drawing, draw_fx
from ..graph_module import GraphModule

__all__ = ["FxGraphDrawer"]


class DotGraph(Drawing):
    """A drawing with the names that programs call of a `pydot.Dot`."""

    def to_string(self) -> str:
        """The DOT text."""
        return self.dot()

    def create_svg(self) -> bytes:
        """The SVG document."""
        return self.svg().encode()

    def write_svg(self, path: str) -> bool:
        """Writes the SVG document to a file; True.

        Args:
            path: of the file.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg())
        return True

    def write_raw(self, path: str) -> bool:
        """Writes the DOT text to a file; True.

        Args:
            path: of the file.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.dot())
        return True

    write = write_dot = write_raw


class FxGraphDrawer:
    """The pictures of a GraphModule and of the GraphModules that it calls.

    Args:
        name: of the picture; those of modules that it calls have theirs behind it: `name_target`.
        ignore_getattr: leaves parameters, buffers and other attributes out.
        ignore_parameters_and_buffers: leaves parameters and buffers out.
        skip_node_names_in_args, parse_stack_trace, dot_graph_shape, normalize_args: accepted, without effect.
    """

    def __init__(
        self,
        graph_module: GraphModule,
        name: str,
        ignore_getattr: bool = False,
        ignore_parameters_and_buffers: bool = False,
        skip_node_names_in_args: bool = True,
        parse_stack_trace: bool = False,
        dot_graph_shape: str | None = None,
        normalize_args: bool = False,
    ) -> None:
        self._name = name
        self._dot_graphs: dict[str, DotGraph] = {}
        open_ = [(name, graph_module)]
        for of, module in open_:  # which grows
            state = dict(module.named_parameters()) | dict(module.named_buffers())
            skipped = {
                node
                for node in module.graph.nodes
                if node.op == "get_attr"
                and (ignore_getattr or (ignore_parameters_and_buffers and node.target in state))
            }
            self._dot_graphs[of] = DotGraph(draw_fx(module.graph, skipped), of)
            for node in module.graph.nodes:
                called = module.get_submodule(node.target) if node.op == "call_module" else None
                if isinstance(called, GraphModule):
                    open_.append((f"{of}_{node.target}", called))

    def get_dot_graph(self, submod_name: str | None = None) -> DotGraph:
        """The picture of the module, or of one that it calls. Raises KeyError where there is none.

        Args:
            submod_name: its path; None for the whole.
        """
        return self._dot_graphs[self._name if submod_name is None else f"{self._name}_{submod_name}"]

    def get_main_dot_graph(self) -> DotGraph:
        """The picture of the module."""
        return self.get_dot_graph()

    def get_submod_dot_graph(self, submod_name: str) -> DotGraph:
        """The picture of a module that it calls.

        Args:
            submod_name: its path.
        """
        return self.get_dot_graph(submod_name)

    def get_all_dot_graphs(self) -> dict[str, DotGraph]:
        """All pictures by name."""
        return self._dot_graphs
