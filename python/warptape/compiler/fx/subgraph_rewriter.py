"""replace_pattern: finds the places of a graph that do what a pattern does, and does something else there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from warptape import nn
from warptape.core import Tensor

from ._symbolic_trace import symbolic_trace
from .graph import Graph, _fetch, _has_attr
from .graph_module import GraphModule, _copy_attr
from .node import Argument, Node, map_arg

__all__ = ["Match", "replace_pattern"]


class Match(NamedTuple):
    """One place: the pattern's last node, and for each node of the pattern the one that it was found as.

    Args:
        anchor: in the graph.
        nodes_map: by node of the pattern.
    """

    anchor: Node
    nodes_map: dict[Node, Node]


def _graph_of(what: Any) -> Graph:
    if isinstance(what, Graph):
        return what
    return (what if isinstance(what, GraphModule) else symbolic_trace(what)).graph


class _Matcher:
    """Looks for a pattern that ends in a given node."""

    def __init__(self, pattern: Graph, owner: nn.Module) -> None:
        self.output = pattern.output_node()
        self.owner = owner
        self.anchors = self.output.all_input_nodes
        self.found: dict[Node, Any] = {}

    def match(self, nodes: list[Node]) -> dict[Node, Any] | None:
        """The pattern's nodes as they are found where its results are `nodes`.

        Args:
            nodes: one for each result.
        """
        self.found = {}
        for anchor, node in zip(self.anchors, nodes):
            if not self._node(anchor, node):
                return None
        inner = set(self._inner())
        returned = set(nodes)
        for node in inner - returned:  # who else takes it would lose it
            if not inner.issuperset(node.users):
                return None
        return self.found

    def _inner(self) -> list[Node]:
        return [n for p, n in self.found.items() if p.op != "placeholder" and isinstance(n, Node)]

    def _node(self, pattern: Node, node: Any) -> bool:
        if pattern in self.found:
            return self.found[pattern] is node
        if isinstance(node, Node) and any(node is other for other in self.found.values()):
            return False
        if pattern.op != "placeholder":
            if not isinstance(node, Node) or node.op != pattern.op or not self._same_target(pattern, node):
                return False
        self.found[pattern] = node
        if pattern.op == "placeholder" or (
            self._value(pattern.args, node.args) and self._value(pattern.kwargs, node.kwargs)
        ):
            return True
        del self.found[pattern]
        return False

    def _same_target(self, pattern: Node, node: Node) -> bool:
        if pattern.op != "get_attr":
            return pattern.target == node.target
        owner = pattern.graph.owning_module
        if owner is None or not _has_attr(self.owner, node.target):
            return pattern.target == node.target
        one, other = _fetch(owner, pattern.target), _fetch(self.owner, node.target)
        return type(one) is type(other) and (isinstance(one, Tensor) or one is other)

    def _value(self, pattern: Argument, value: Argument) -> bool:
        if isinstance(pattern, Node):
            return self._node(pattern, value)
        if isinstance(pattern, list | tuple):
            return (
                isinstance(value, list | tuple)
                and len(pattern) == len(value)
                and all(map(self._value, pattern, value))
            )
        if isinstance(pattern, dict):
            return (
                isinstance(value, dict)
                and pattern.keys() == value.keys()
                and all(self._value(pattern[key], value[key]) for key in pattern)
            )
        if isinstance(pattern, slice):
            parts = lambda s: (s.start, s.stop, s.step)
            return isinstance(value, slice) and self._value(parts(pattern), parts(value))
        return not isinstance(value, Node) and type(pattern) is type(value) and pattern == value


def _find(graph: Graph, pattern: Graph, owner: nn.Module) -> list[Match]:
    """The places that do not overlap, first come first served."""
    matcher = _Matcher(pattern, owner)
    if not matcher.anchors or any(anchor.op == "placeholder" for anchor in matcher.anchors):
        raise AssertionError("The insert point can't be None")
    matches: list[Match] = []
    taken: set[Node] = set()
    first, *others = matcher.anchors
    for node in graph.nodes:
        nodes = [node]
        for anchor in others:  # of several results, the others are looked for by target
            same = [
                n for n in graph.nodes if n.op == anchor.op and n.target == anchor.target and n not in nodes
            ]
            fits = [n for n in same if matcher.match([*nodes, n]) is not None]
            nodes.extend(fits[:1])
        match = matcher.match(nodes) if len(nodes) == len(matcher.anchors) else None
        if match is None or taken.intersection(matcher._inner()):
            continue
        taken.update(matcher._inner())
        matches.append(Match(first, match))
    return matches


def _insert(graph: Graph, match: Match, replacement: Graph, changed: dict[Node, Node]) -> None:
    """Puts a copy of the replacement where the pattern was found."""
    places = [n for n in match.nodes_map if n.op == "placeholder"]
    places.sort(key=list(match.anchor.graph.nodes).index)
    inputs = replacement.find_nodes(op="placeholder")
    if len(places) != len(inputs):
        raise AssertionError(f"Placeholder count mismatch: {len(places)} vs {len(inputs)}")
    values: dict[Node, Any] = {}
    for place, node in zip(places, inputs):
        value = match.nodes_map[place]
        values[node] = changed.get(value, value) if isinstance(value, Node) else value
    old = [match.nodes_map[n] for n in match.anchor.graph.output_node().all_input_nodes]
    inner = {n for p, n in match.nodes_map.items() if p.op != "placeholder"}
    users = {user for node in old for user in node.users} - inner or set(old)
    with graph.inserting_before(next(n for n in graph.nodes if n in users)):
        out = graph.graph_copy(replacement, values)
    new: list[Node] = []

    def note(node: Node) -> Node:
        new.append(node)
        return node

    map_arg((out,), note)
    if len(new) != len(old):
        raise AssertionError(f"Output count mismatch: {len(old)} vs {len(new)}")
    for before, after in zip(old, new):
        before.replace_all_uses_with(after)
        changed[before] = after
    for node in reversed(graph.nodes):
        if node in inner:
            graph.erase_node(node)


def replace_pattern(
    gm: GraphModule,
    pattern: Callable[..., Any] | GraphModule,
    replacement: Callable[..., Any] | GraphModule,
) -> list[Match]:
    """Puts `replacement` wherever the module does what `pattern` does; both take the same arguments.

    A place counts when functions, methods and the names of modules are the pattern's, and nothing else uses
    what is within it. Places that overlap are taken from the first on.

    Returns:
        The places as they were.
    """
    traced = replacement if isinstance(replacement, GraphModule) else symbolic_trace(replacement)
    matches = _find(gm.graph, _graph_of(pattern), gm)
    changed: dict[Node, Node] = {}
    for node in traced.graph.nodes if matches else ():
        if node.op in ("call_module", "get_attr") and not _has_attr(gm, node.target):
            _copy_attr(traced, gm, node.target)
    for match in matches:
        _insert(gm.graph, match, traced.graph, changed)
    gm.delete_all_unused_submodules()
    gm.recompile()
    return matches
