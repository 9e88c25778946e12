"""How an op may be split: which placements of its inputs give which of its outputs.

A rule gives names, `labels`, to the dims of an op's tensors: dims of one label are split together, and a dim
without one must not be split. matmul of [b, i, j] and [j, k] has labels "bij", "jk" and "bik"; j, which is
summed over, leaves a Partial result. From the labels follow the ways to run the op on one axis of a mesh, and
for each axis the cheapest is taken, the placements at hand given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.op_facts import OpTable
from .layout import Layout
from .placement import Partial, Placement, Replicate, Shard

Label = Hashable  # None for a dim that must not be split
Labels = tuple[Label, ...]
Way = tuple[tuple[Placement, ...], tuple[Placement, ...]]  # of the inputs and outputs, on one axis


@dataclass
class Rule:
    """How the tensors of one call hang together.

    Args:
        inputs: labels of each tensor that the call gets.
        outputs: labels of each tensor that it returns; those of the only entry go for all.
        sums: labels of inputs that no output has, with the reduction that ranks' results then need.
        linear: groups of inputs in which the op is linear, together: they may all be Partial.
        moves: the op only moves elements, so that they may be Partial of any kind.
        addends: inputs that are added to the result; where that is a partial sum, they are one too.
        localize: changes (args, kwargs) to those of the shards: gets the full outputs' shapes' local ones.
        shapes: of the full outputs, where they do not follow from labels.
        run: called in place of the op.
        layout_of: a tensor whose layout, as chosen, `run` gets before the arguments.
    """

    inputs: list[Labels]
    outputs: list[Labels]
    sums: dict[Label, str] = field(default_factory=dict)
    linear: list[set[int]] = field(default_factory=list)
    moves: bool = False
    addends: frozenset[int] = frozenset()
    localize: (
        Callable[[tuple, dict[str, Any], list[tuple[int, ...]]], tuple[tuple, dict[str, Any]]] | None
    ) = None
    shapes: list[tuple[int, ...]] | None = None
    run: Callable[..., Any] | None = None
    layout_of: int | None = None


@dataclass
class Call:
    """A call under a rule: its arguments, and its tensors in their order.

    Args:
        name, func: of the op.
        args, kwargs: of the call.
        shapes, layouts: of its tensors; a layout of None is a plain tensor's.
        places: numbers of the tensors in each argument.
        inplace: whether the first tensor is changed.
        linear: whether sums over ranks may wait.
    """

    name: str
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: list[tuple[int, ...]]  # of the full tensors
    layouts: list[Layout | None]  # None for plain numbers in tensors
    places: dict[Any, list[int]]  # by position or keyword, which tensors an argument has
    inplace: bool = False
    linear: bool = False  # in its tensors taken together, as declared

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by its place or name.

        Args:
            position, name: both of the same argument.
            default: where it was not given.
        """
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    def tensor(self, position: int, name: str) -> int | None:
        """The number of the tensor that is this argument, or None.

        Args:
            position, name: both of the same argument.
        """
        places = self.places.get(position if position < len(self.args) else name, [])
        return places[0] if places else None

    def dims(self, position: int, name: str, default: Any = None) -> list[int]:
        """An argument that counts dims of the first tensor, as a list from the front; all dims for None.

        Args:
            position, name: both of the same argument.
            default: where it was not given.
        """
        value, n = self.arg(position, name, default), len(self.shapes[0])
        if value is None or value == () or value == []:
            return list(range(n))
        return [d % n for d in ([value] if isinstance(value, int) else value) if n]

    def splits(self, tensor: int, dim: int) -> int:
        """Into how many parts a dim of a tensor is cut now; at least 1.

        Args:
            tensor: its number.
            dim: of the tensor.
        """
        layout = self.layouts[tensor]
        return layout.shards_of(dim) if layout else 1

    def divides(self, dim: int, tensor: int = 0) -> bool:
        """Whether a dim gives equal parts on whatever axes of the mesh.

        Args:
            dim: of the tensor.
            tensor: its number.
        """
        mesh = next(x.mesh for x in self.layouts if x is not None)
        return self.shapes[tensor][dim] % mesh.size() == 0


RULES: OpTable[Callable[[Call], Rule | None]] = OpTable()


INDEXED: set[str] = set()  # whose indices may be plain tensors, alike on all ranks


def rule(*names: str, indexed: bool = False) -> Callable[[Any], Any]:
    """Decorator: the function says how calls of these ops, or of those with these facts (core/op_facts.py),
    may be split, or None that they may not. Those that are `indexed` take plain tensors of integers."""

    def register(function: Any) -> Any:
        for name in " ".join(names).split():
            RULES[name] = function
            if indexed:
                INDEXED.add(name)
        return function

    return register


def _forms(rule: Rule, here: Sequence[Sequence[Placement]], axis: int) -> dict[Label, set[Shard]]:
    """By label, the splits in an order of their own (of joined parts, or strided) that inputs have on an
    axis. An op may keep them where nothing but the lengths of shards depends on the split."""
    out: dict[Label, set[Shard]] = {}
    if rule.localize is None and rule.run is None and rule.shapes is None:
        for labels, where in zip(rule.inputs, here, strict=True):
            each = where[axis]
            if isinstance(each, Shard) and each != Shard(each.dim) and labels[each.dim] is not None:
                out.setdefault(labels[each.dim], set()).add(replace(each, dim=0))
    return out


def ways(rule: Rule, kinds: set[str], forms: dict[Label, set[Shard]] | None = None) -> list[Way]:
    """All ways to run an op on one axis; `kinds` are those of Partial to think of, `forms` is of `_forms`.

    Args:
        rule: which dims belong together.
        kinds: names of reductions.
        forms: placements of each label.
    """
    outs = rule.outputs
    out: list[Way] = [((Replicate(),) * len(rule.inputs), (Replicate(),) * len(outs))]
    seen: list[Label] = []
    for labels in rule.inputs:
        seen += [x for x in labels if x is not None and x not in seen]
    split = [(label, form) for label in seen for form in (Shard(0), *(forms or {}).get(label, ()))]
    for label, form in split:
        if all(label not in o and label not in rule.sums for o in outs):
            continue
        ins: list[Placement] = []
        results: list[Placement] = []
        for o in outs:
            results.append(
                replace(form, dim=o.index(label)) if label in o else Partial(rule.sums.get(label, ""))
            )
        if any(isinstance(r, Partial) and not r.reduce_op for r in results):
            continue
        summed = next((r for r in results if isinstance(r, Partial)), None)
        for i, labels in enumerate(rule.inputs):
            if label in labels:
                ins.append(replace(form, dim=labels.index(label)))
            else:
                ins.append(summed if summed is not None and i in rule.addends else Replicate())
        out.append((tuple(ins), tuple(results)))
    for kind in sorted(kinds if rule.moves else kinds & {"sum", "avg"}):
        for group in rule.linear:
            ins = [Partial(kind) if i in group else Replicate() for i in range(len(rule.inputs))]
            out.append((tuple(ins), (Partial(kind),) * len(outs)))
    return out


def _cost(have: Placement, want: Placement) -> float:
    """Of bringing a tensor there, by its elements that go to other ranks."""
    if have == want:
        return 0
    if isinstance(have, Replicate):
        return 0.01 if isinstance(want, Shard) else 0.02
    if isinstance(want, Partial):
        return math.inf
    return 2 if isinstance(have, Partial) and isinstance(want, Replicate) else 1


def fits(call: Call, rule: Rule) -> bool:
    """Whether dims of one label are of one length.

    Args:
        call: the op's call.
        rule: which dims belong together.
    """
    lengths: dict[Label, int] = {}
    for labels, shape in zip(rule.inputs, call.shapes, strict=True):
        for label, n in zip(labels, shape, strict=True):
            if label is not None and lengths.setdefault(label, n) != n:
                return False
    return True


def choose(call: Call, rule: Rule) -> tuple[list[tuple[Placement, ...]], list[tuple[Placement, ...]]] | None:
    """Placements of the inputs, and of the outputs, for all axes: the same on all ranks. None where there is
    no way to it, as for an in-place op on a tensor that would have to move."""
    mesh = next(x.mesh for x in call.layouts if x is not None)
    here = [x.placements if x else (Replicate(),) * mesh.ndim for x in call.layouts]
    kinds = {p.reduce_op for where in here for p in where if isinstance(p, Partial)}
    chosen: list[Way] = []
    plain_ways = ways(rule, kinds)
    for axis in range(mesh.ndim):
        best, least = None, math.inf
        forms = _forms(rule, here, axis)
        every = ways(rule, kinds, forms) if forms else plain_ways
        for ins, outs in every:
            if call.inplace and (outs[0] != here[0][axis] or ins[0] != outs[0]):
                continue
            cost = 0.0
            for i, want in enumerate(ins):
                if call.layouts[i] is not None:
                    cost += _cost(here[i][axis], want) * (1 + math.prod(call.shapes[i]))
            if cost < least:
                best, least = (ins, outs), cost
        if best is None:
            return None
        chosen.append(best)
    inputs = [tuple(way[0][i] for way in chosen) for i in range(len(here))]
    outputs = [tuple(way[1][o] for way in chosen) for o in range(len(rule.outputs))]
    return inputs, outputs


def shape_of(labels: Labels, rule: Rule, call: Call, local: Sequence[int]) -> tuple[int, ...]:
    """The shape of a full output: labelled dims are as long as the inputs', the others as on every rank.

    Args:
        labels: of the output.
        rule: which dims belong together.
        call: the op's call.
        local: the shape that this rank computed.
    """
    lengths: dict[Label, int] = {}
    for names, shape in zip(rule.inputs, call.shapes, strict=True):
        for label, n in zip(names, shape, strict=True):
            lengths[label] = max(n, lengths.get(label, 0)) if n else 0
    return tuple(int(n) if x is None else lengths[x] for x, n in zip(labels, local, strict=True))
