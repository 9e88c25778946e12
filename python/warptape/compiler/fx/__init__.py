"""Programs recorded as graphs, graphs edited, and Python code made of them, as torch.fx.

`symbolic_trace` runs a module on proxies and gives a GraphModule, whose `graph` can be changed; after that
`recompile()` makes its code follow.
"""

from . import immutable_collections, node, passes, proxy
from ._symbolic_trace import PH, Tracer, symbolic_trace, wrap
from .graph import Graph
from .graph_module import GraphModule
from .interpreter import Interpreter, Transformer
from .node import Node, has_side_effect, map_arg
from .proxy import Proxy
from .subgraph_rewriter import replace_pattern

__all__ = [
    "PH",
    "Graph",
    "GraphModule",
    "Interpreter",
    "Node",
    "Proxy",
    "Tracer",
    "Transformer",
    "has_side_effect",
    "map_arg",
    "replace_pattern",
    "symbolic_trace",
    "wrap",
]
