"""A graph of ops as an fx.GraphModule: Python source that makes the same calls, to read and to transform."""

from __future__ import annotations

import functools
import keyword
import operator
from typing import Any

from warptape import core as wt
from warptape.compiler.higher_order_ops.cond import cond
from warptape.compiler.higher_order_ops.while_loop import while_loop

from ... import _C
from ...core.pytree import TreeSpec, tree_unflatten
from .. import fx

# Where Python finds an op, by the bits of OpFlag (csrc/op/op.h), in order of preference.
_PLACES = {
    1 << 0: "_functions",
    1 << 2: "_nn",
    1 << 4: "_linalg",
    1 << 6: "_special",
    1 << 7: "_fft",
    1 << 30: "_windows",
    1 << 31: "_masked",
    1 << 5: "_private",
}
_METHOD = 1 << 1


@functools.cache
def _declarations() -> dict[tuple[Any, ...], tuple[list[Any], str]]:
    """The arguments and the kind of result of each declaration, by its name, flags and the names of its
    arguments."""
    return {(n, flags, *(a[0] for a in args)): (args, kind) for n, flags, args, kind, *_ in _C._list_ops()}


def _first(found: Any) -> Any:
    """The one tensor that an op gave, by itself or in a list, as its arguments asked."""
    return found if isinstance(found, wt.Tensor) else found[0]


class _Builder:
    """Builds the fx graph of one op graph."""

    def __init__(self, op_graph: Any) -> None:
        self.ops = op_graph
        self.root: dict[str, Any] = {}
        self.graph = fx.Graph()
        self.nodes: dict[int, fx.Node] = {}
        self.sizes: dict[str, fx.Node] = {}  # by symbol

    def build(self, out_spec: TreeSpec | None, out_values: dict[int, Any]) -> fx.GraphModule:
        values = self.ops.values
        for number, i in enumerate(self.ops.inputs):
            self.nodes[i] = self.graph.placeholder(f"arg_{number}")
        for i in self.ops.inputs:
            self._read_symbols(i, values[i][2])
        for i, tensor in self.ops.constants.items():
            self.root[values[i][3]] = tensor
            self.nodes[i] = self.graph.get_attr(values[i][3])
        calls = zip(self.ops.calls, self.ops.flags, self.ops.modes, strict=True)
        for (name, args, outputs, source), flags, mode in calls:
            if any(mode):
                state = "no_grad" if mode[0] else "autocast"
                raise NotImplementedError(f"fx: {name} at {source} runs under {state}, which is not written")
            self._call(name, flags, dict(args), outputs, source)
            for i in outputs:
                if i is not None:
                    self._read_symbols(i, values[i][2])
        results = iter([self.nodes[i] for i in self.ops.outputs])
        if out_spec is None:
            self.graph.output(tuple(results))
        else:
            leaves = [out_values[i] if i in out_values else next(results) for i in range(out_spec.num_leaves)]
            self.graph.output(tree_unflatten(leaves, out_spec))
        for node in reversed(self.graph.nodes):
            if not node.users and node.target in ("size", operator.getitem):
                self.graph.erase_node(node)
        return fx.GraphModule(self.root, self.graph)

    def _read_symbols(self, i: int, sizes: list[Any]) -> None:
        for dim, size in enumerate(sizes):
            if size is None or isinstance(size, int) or size.divisor != 1 or len(size.terms) != 1:
                continue
            factor, names = size.terms[0]
            if factor == 1 and len(names) == 1 and names[0] not in self.sizes:
                self.sizes[names[0]] = self.graph.call_method("size", (self.nodes[i], dim))

    def _expression(self, e: Any) -> fx.Node:
        total: Any = None
        for factor, names in e.terms:
            first, *more = [self.sizes[name] for name in names] or [factor]
            product: Any = first
            for x in [*more, *([factor] if names and factor != 1 else [])]:
                product = self.graph.call_function(operator.mul, (product, x))
            total = product if total is None else self.graph.call_function(operator.add, (total, product))
        return total if e.divisor == 1 else self.graph.call_function(operator.floordiv, (total, e.divisor))

    def _argument(self, x: Any) -> Any:
        if isinstance(x, _C._Ref):
            return self.nodes[x.id]
        if isinstance(x, _C._Expr):
            return self._expression(x)
        return [self._argument(item) for item in x] if isinstance(x, list) else x

    def _call(self, name: str, flags: int, args: dict[str, Any], outputs: list[Any], source: str) -> None:
        branches = args.pop("graphs", None)
        kind = "tuple"
        if branches is not None:
            node = self._control(name, list(args.values()), branches)
        else:
            place = next((place for bit, place in _PLACES.items() if flags & bit), None)
            if place is None and not flags & _METHOD:
                raise NotImplementedError(f"fx: op {name} has no name in Python")
            declaration = (name, flags, *args)
            declared, kind = _declarations()[declaration]
            positional, named = self._arguments(args, declared)
            if place is None:
                node = self.graph.call_method(name, positional, named)
            else:
                node = self.graph.call_function(getattr(getattr(_C, place), name), positional, named)
        node.meta["source"] = source
        if kind == "OneOrMany" and len(outputs) == 1:
            node = self.graph.call_function(_first, (node,))
        several = kind in ("tuple", "list", "TensorAndList") or len(outputs) > 1
        for k, i in enumerate(outputs):
            if i is not None:
                self.nodes[i] = self.graph.call_function(operator.getitem, (node, k)) if several else node

    def _arguments(self, args: dict[str, Any], declared: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The first by place, all else by name; what is None is left out where it may be."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for (name, _, _, has_default, keyword_only, *_), x in zip(declared, args.values(), strict=True):
            if not keyword_only and (not positional or any(map(keyword.iskeyword, args))):
                positional.append(self._argument(x))
            elif x is not None or not has_default:
                named[name] = self._argument(x)
        return tuple(positional), named

    def _control(self, name: str, args: list[Any], branches: list[Any]) -> fx.Node:
        lists = [self._argument(x) for x in args]
        if name == "scan" or (name == "while_loop" and lists[1]):
            raise NotImplementedError(
                f"fx: {name} with tensors captured by its functions cannot be written as Python"
            )
        modules = []
        for branch in branches:
            target = f"branch_{len(self.root)}"
            self.root[target] = _Builder(branch).build(None, {})
            modules.append(self.graph.get_attr(target))
        if name == "cond":
            return self.graph.call_function(cond, (lists[0], *modules, tuple(lists[1])))
        return self.graph.call_function(while_loop, (*modules, tuple(lists[0])))


def to_fx(function: Any) -> fx.GraphModule:
    """The calls of a `GraphFunction` as an fx.GraphModule of flat tensors; its `code` is Python source.

    Raises:
        NotImplementedError: a scan, or a while_loop whose functions use tensors from around them.
    """
    return _Builder(function.graph).build(function.out_spec, function.out_values)
