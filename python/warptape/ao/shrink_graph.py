"""Follows the calls of a recorded graph by their rules (Note [Labels], shrink_labels.py)."""

from __future__ import annotations

from typing import Any

from .. import _C
from .shrink_labels import ChannelGraph, Labels, Value
from .shrink_rules import RULES, Arguments, Rule


class _Walk:
    """Follows the calls of one graph."""

    def __init__(self, graph: Any, names: set[str]) -> None:
        self.graph, self.names = graph, names
        self.result = ChannelGraph(Labels())
        self.labels = self.result.labels
        self.values: dict[int, Value] = {}

    def sizes(self, i: int) -> tuple[int, ...]:
        return tuple(self.graph.values[i][2])

    def run(self) -> ChannelGraph:
        for i in self.graph.inputs:
            self.values[i] = Value(self.sizes(i), [None] * len(self.sizes(i)))
        for i, tensor in self.graph.constants.items():
            sizes, name = tuple(tensor.shape), self.graph.values[i][3]
            mine = name in self.names
            dims = [self.labels.fresh(n) if mine else None for n in sizes]
            self.values[i] = Value(sizes, dims, name=name if mine else "", tensor=tensor)
            if mine:
                self.result.params[name] = self.values[i]
        for (name, args, outputs, _), pointwise in zip(self.graph.calls, self.graph.pointwise, strict=True):
            arguments = Arguments(
                self,
                name,
                {key: self.argument(x) for key, x in args.items()},
                [None if i is None else self.sizes(i) for i in outputs],
            )
            results = self.call(name, arguments, pointwise)
            for i, value in zip(outputs, results):
                if i is not None:
                    self.values[i] = value
        for i in self.graph.outputs:
            self.labels.fix(*self.values[i].dims)
        return self.result

    def argument(self, x: Any) -> Any:
        if isinstance(x, _C._Ref):
            return self.values[x.id]
        return [self.argument(item) for item in x] if isinstance(x, list) else x

    def call(self, name: str, args: Arguments, pointwise: bool) -> list[Value]:
        rule: Rule | None = RULES.find(name)
        if rule is None and pointwise:
            rule = RULES["role=pointwise"]
        labels = rule(args) if rule is not None else None
        if labels is not None:
            return labels
        if any(d is not None for t in args.tensors() for d in t.dims):
            self.result.unknown.add(name)
        for t in args.tensors():
            self.labels.fix(*t.dims)
        return [Value(s or (), [None] * len(s or ())) for s in args.out_sizes]


def follow(graph: Any, names: set[str]) -> ChannelGraph:
    """The labels of a graph whose constants of these names, parameters and buffers, may become smaller.

    Args:
        graph: of ops.
        names: of constants.
    """
    return _Walk(graph, names).run()
