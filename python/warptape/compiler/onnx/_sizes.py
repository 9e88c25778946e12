"""Graphs for all sizes of the inputs, from graphs that were recorded at some.

An integer of a graph that is another at other sizes is `Varying`. What it is of the sizes is found where a
file needs it, among the forms that models have: polynomials, sizes divided and rounded down (halves rounded
up are such), what is left of a multiple, and one that is clamped. Where several forms fit, the model is
recorded at a further size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from warptape import core as wt

from ... import _C
from ...core import Tensor
from ...core.pytree import tree_flatten, tree_unflatten
from ..export.dims import Sizes
from ..graphs import GraphFunction, record
from ._errors import UnsupportedOperatorError

_SMALL = 1 << 16  # elements of the inputs: at so few, a much larger size is recorded as well


class Atom(NamedTuple):
    """`low <= (factor * symbol + offset) // divisor % modulus <= high`, where modulus 0 takes no rest."""

    symbol: str
    factor: int = 1
    offset: int = 0
    divisor: int = 1
    modulus: int = 0
    low: int | None = None
    high: int | None = None

    def value(self, n: int) -> int:
        """At one size."""
        x = (self.factor * n + self.offset) // self.divisor
        x = x % self.modulus if self.modulus else x
        x = x if self.low is None else max(x, self.low)
        return x if self.high is None else min(x, self.high)


class Form(NamedTuple):
    """sum(factor * product(atoms)) / divisor, without a rest."""

    terms: list[tuple[int, list[Atom]]]
    divisor: int = 1


class Varying:
    """An integer of a graph that depends on the sizes of the inputs; `values` are those of the runs."""

    def __init__(self, runs: Runs, path: tuple[Any, ...]) -> None:
        self._runs, self._path = runs, path

    @property
    def values(self) -> list[int]:
        """By run."""
        return [self.value_in(run) for run in self._runs.described]

    def value_in(self, run: Any) -> int:
        """In one run."""
        for key in self._path:
            run = run[key]
        return run

    def form(self) -> Form | None:
        """What it is of the sizes; None where no form fits."""
        return self._runs.form_of(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Varying) and self.values == other.values

    def __hash__(self) -> int:
        return hash(tuple(self.values))

    def __index__(self) -> int:
        raise UnsupportedOperatorError("a size that varies, where ONNX wants a number")

    __int__ = __mul__ = __rmul__ = __mod__ = __floordiv__ = lambda self, *_: self.__index__()


def _different(why: str, source: str = "") -> NotImplementedError:
    return NotImplementedError(f"torch.onnx.export: {why}{source and f': {source}'}")


class Runs:
    """The graphs of a model at several sizes: first the example's, then each symbol alone at others.

    What eager code refuses at some sizes is left out. Otherwise the graphs must be of the same calls.
    """

    def __init__(self, mod: Callable[..., Any], args: Any, kwargs: Any, sizes: Sizes) -> None:
        self._mod, self._sizes = mod, sizes
        self._leaves, self._spec = tree_flatten((args, kwargs))
        self.names = [d.__name__ for d in sizes.symbols]
        self.points: list[tuple[int, ...]] = []
        self.described: list[Any] = []
        self._tried: set[tuple[int, ...]] = set()
        self._forms: dict[tuple[int, ...], Form | None] = {}
        self._merged: Any = None
        base = tuple(sizes.examples)
        self.function = self._record(base)
        self._take(base, self.function)
        others = [self._others(s) for s in range(len(base))]
        for mask in product((0, 1), repeat=len(base)):
            if sum(mask) > 1:
                self.add(tuple(o[0] if m else n for m, n, o in zip(mask, base, others, strict=True)))
        if len(base) > 1:
            self.add(tuple(o[1 % len(o)] for o in others))
        self._merged = self._merge((), self.described)
        self.values, self.calls = self._merged["values"], self._merged["calls"]
        self.results = self._merged["results"]

    # ---- recording ----

    def _others(self, s: int) -> list[int]:
        """Other sizes of a symbol at which the model runs."""
        d, n = self._sizes.symbols[s], self._sizes.examples[s]
        near = [n + 1, n + 2, n + 3, n - 1, n - 2, n + 4, n + 8, n + 16, n + 32]
        taken = [k for k in (2 * n, 3 * n, 1) if self._add_one(s, k)]
        sizes = taken[:]
        for k in near:
            if len(sizes) < len(taken) + 4 and self._add_one(s, k):
                sizes.append(k)
        if sum(self._leaves[i].numel() for i in self._at()) <= _SMALL and self._add_one(s, 8 * n + 5):
            sizes.append(8 * n + 5)
        if not sizes:
            raise ValueError(f"dynamic_shapes: {d.__name__} can be {n} alone; leave it out")
        return sorted(sizes, key=lambda k: (k == 1, k != 2 * n))

    def size_of(self, s: int) -> tuple[int, ...]:
        """A symbol's size by run."""
        return tuple(p[s] for p in self.points)

    def _add_one(self, s: int, size: int) -> bool:
        point = list(self._sizes.examples)
        point[s] = size
        return self.add(tuple(point))

    def add(self, point: tuple[int, ...]) -> bool:
        """Records at these sizes; whether they are new, within the ranges, and the model runs at them."""
        ranges = zip(point, self._sizes.symbols, strict=True)
        if point in self._tried or not all(max(d.min, 1) <= n <= d.max for n, d in ranges):
            return False
        self._tried.add(point)
        try:
            function = self._record(point)
        except Exception:
            if self._runs_at(point):
                raise
            return False
        self._take(point, function)
        return True

    def _at(self) -> list[int]:
        return [i for i, x in enumerate(self._leaves) if isinstance(x, Tensor)]

    def _arguments(self, point: tuple[int, ...]) -> Any:
        leaves, at = list(self._leaves), self._at()
        if point != tuple(self._sizes.examples):
            resized = self._sizes.resized([leaves[i] for i in at], list(point))
            for i, t in zip(at, resized, strict=True):
                leaves[i] = t
        return tree_unflatten(leaves, self._spec)

    def _record(self, point: tuple[int, ...]) -> GraphFunction:
        args, kwargs = self._arguments(point)
        return record(self._mod, args, kwargs, strict=True)

    def _runs_at(self, point: tuple[int, ...]) -> bool:
        args, kwargs = self._arguments(point)
        try:
            with wt.no_grad():
                self._mod(*args, **kwargs)
        except Exception:
            return False
        return True

    def _take(self, point: tuple[int, ...], function: GraphFunction) -> None:
        graph, first = function.graph, self.function.graph
        if self.described:
            if [t.data_ptr() for t in first.constants.values()] != [
                t.data_ptr() for t in graph.constants.values()
            ]:
                self._compare_constants(first.constants, graph.constants)
            if graph.outputs != first.outputs or graph.inputs != first.inputs:
                raise _different("other ops are called for other sizes of the inputs")
        described = describe(function)
        if self._merged is not None:
            self._check(self._merged, described)
        self.points.append(point)
        self.described.append(described)

    @staticmethod
    def _compare_constants(a: dict[int, Tensor], b: dict[int, Tensor]) -> None:
        same = a.keys() == b.keys() and all(
            x.shape == b[i].shape and x.dtype == b[i].dtype and wt.equal(x, b[i]) for i, x in a.items()
        )
        if not same:
            raise _different(
                "a tensor that no op made depends on the sizes of the inputs: make it by ops (torch.arange, "
                "torch.full, ..)"
            )

    # ---- comparing ----

    def _merge(self, path: tuple[Any, ...], items: list[Any]) -> Any:
        """The one description of all runs."""
        first = items[0]
        if all(type(x) is int for x in items):
            return first if all(x == first for x in items) else Varying(self, path)
        if isinstance(first, dict):
            if any(x.keys() != first.keys() for x in items):
                raise _different("other ops are called for other sizes of the inputs")
            return {k: self._merge((*path, k), [x[k] for x in items]) for k in first}
        if isinstance(first, (list, tuple)):
            self._same_length(path, items)
            merged = [self._merge((*path, k), [x[k] for x in items]) for k in range(len(first))]
            return Uniform(*merged) if isinstance(first, Uniform) else type(first)(merged)
        for point, x in zip(self.points, items, strict=True):
            if not _same(first, x):
                raise self._unequal(path, first, point)
        return first

    def _same_length(self, path: tuple[Any, ...], items: list[Any]) -> None:
        for point, x in zip(self.points, items, strict=True):
            if type(x) is not type(items[0]) or len(x) != len(items[0]):
                raise self._unequal(path, items[0], point)

    def _unequal(self, path: tuple[Any, ...], value: object, point: tuple[int, ...]) -> NotImplementedError:
        sizes = ", ".join(f"{name} = {n}" for name, n in zip(self.names, point, strict=True))
        source = self.described[0][path[0]][path[1]][3] if path[:1] == ("calls",) and len(path) > 1 else ""
        if len(path) < 3 or path[2] != 1:
            return _different(f"other ops are called at sizes {sizes} of the inputs", source)
        return _different(f"argument {path[3]!r}, which is no integer, is another at sizes {sizes}", source)

    def _check(self, merged: Any, described: Any) -> None:
        """A further run differs in nothing but what varies."""
        for path in _numbers(merged, ()):
            x = described
            for key in path:
                x = x[key]
            y = self.described[0]
            for key in path:
                y = y[key]
            if x != y:
                raise _different(f"an integer that is {y} at most sizes is {x} at others")

    # ---- forms ----

    def form_of(self, x: Varying) -> Form | None:
        """What an integer is of the sizes."""
        for _ in range(100):  # recordings to tell forms apart
            key = tuple(x.values)
            if key not in self._forms:
                form, wanted = self._fit(list(key))
                if any(self._add_one(s, n) for s, sizes in wanted.items() for n in sizes):
                    continue
                self._forms[key] = form
            return self._forms[key]
        return None

    def _fit(self, values: list[int]) -> tuple[Form | None, dict[int, list[int]]]:
        """(a form, sizes by symbol that would tell it from others)."""
        form = self._polynomial(values)
        if form is not None:
            return form, {}
        wanted: dict[int, list[int]] = {}
        base = self.points[0]
        parts: list[tuple[Atom, int, int]] = []
        for s in range(len(base)):
            star = {
                p[s]: v
                for p, v in zip(self.points, values, strict=True)
                if all(a == b for k, (a, b) in enumerate(zip(p, base, strict=True)) if k != s)
            }
            if len(set(star.values())) < 2:
                continue
            fitted = _fit_one(self.names[s], star)
            if fitted is None:
                return None, {}
            atom, scale, shift, rival = fitted
            parts.append((atom, scale, shift))
            wanted[s] = _telling(atom, rival, star)
        for form in _combined(parts, values[0], base, self.names):
            if all(self._value(form, p) == v for p, v in zip(self.points, values, strict=True)):
                return form, wanted
        return None, {}

    def _value(self, form: Form, point: tuple[int, ...]) -> Fraction:
        sizes = dict(zip(self.names, point, strict=True))
        total = sum(
            factor * math.prod(a.value(sizes[a.symbol]) for a in atoms) for factor, atoms in form.terms
        )
        return Fraction(total, form.divisor)

    def _polynomial(self, values: list[int]) -> Form | None:
        """The polynomial, linear in each symbol, with these values, if there is one with whole numbers."""
        of = dict(zip(self.points, values, strict=True))
        base = self.points[0]
        used = [s for s in range(len(base)) if any(p[s] != base[s] and v != values[0] for p, v in of.items())]
        high = [max((p[s] for p in self.points if self._alone(p, s)), default=0) for s in range(len(base))]
        terms: dict[tuple[int, ...], Fraction] = {}
        for symbols in _subsets(used):
            # the value at the corner less that of the terms found so far
            point = tuple(high[s] if s in symbols else n for s, n in enumerate(base))
            point = point if point in of else self._combination(symbols)
            if point is None:
                continue
            deltas = math.prod(point[s] - base[s] for s in symbols)
            so_far = sum(f * math.prod(point[s] - base[s] for s in known) for known, f in terms.items())
            terms[symbols] = Fraction(of[point] - so_far, deltas)
        # in powers of (n - base) so far
        expanded: dict[tuple[int, ...], Fraction] = {}
        for symbols, f in terms.items():
            for kept in _subsets(list(symbols)):
                rest = math.prod(-base[s] for s in symbols if s not in kept)
                expanded[kept] = expanded.get(kept, Fraction(0)) + f * rest
        if any(f.denominator != 1 for f in expanded.values()):
            return None
        form = Form([
            (int(f), [Atom(self.names[s]) for s in symbols])
            for symbols, f in sorted(expanded.items(), key=lambda item: -len(item[0]))
            if f
        ])  # fmt: skip
        return form if all(self._value(form, p) == v for p, v in of.items()) else None

    def _alone(self, point: tuple[int, ...], s: int) -> bool:
        return all(a == b for k, (a, b) in enumerate(zip(point, self.points[0], strict=True)) if k != s)

    def _combination(self, symbols: tuple[int, ...]) -> Any:
        """A point at which exactly these symbols differ from the example's."""
        base = self.points[0]
        return next(
            (p for p in self.points if all((p[s] != n) == (s in symbols) for s, n in enumerate(base))), None
        )


def describe(function: GraphFunction) -> dict[str, Any]:
    """Values, calls and results of a graph as Python has them."""
    graph = function.graph
    tensors = iter(graph.outputs)
    results = [
        ("number", function.out_values[i]) if i in function.out_values else ("tensor", next(tensors))
        for i in range(function.out_spec.num_leaves)
    ]
    calls = [list(c) for c in graph.calls]
    for c in calls:
        if (batches := c[1].get("batch_sizes")) and len(set(batches)) == 1:
            c[1]["batch_sizes"] = Uniform(batches[0], len(batches))
    return {"values": graph.values, "calls": calls, "results": results}


class Uniform(NamedTuple):
    """The batch sizes of a layer whose steps all have one."""

    batch: Any
    steps: Any


def _same(a: object, b: object) -> bool:
    if isinstance(a, _C._Ref):
        return isinstance(b, _C._Ref) and a.id == b.id
    if hasattr(a, "text"):  # the graph of a branch
        return hasattr(b, "text") and a.text() == b.text()
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _numbers(tree: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Where the integers are that do not vary."""
    if type(tree) is int:
        yield path
    elif isinstance(tree, dict):
        for k, x in tree.items():
            yield from _numbers(x, (*path, k))
    elif isinstance(tree, (list, tuple)):
        for k, x in enumerate(tree):
            yield from _numbers(x, (*path, k))


def _subsets(items: list[int]) -> Iterator[tuple[int, ...]]:
    """By size."""
    for mask in sorted(product((0, 1), repeat=len(items)), key=sum):
        yield tuple(s for s, m in zip(items, mask, strict=True) if m)


# ---- forms of one symbol: value = scale * atom + shift -----------------------------------------------------


def _fit_one(symbol: str, star: dict[int, int]) -> tuple[Atom, int, int, Atom | None] | None:
    """(atom, scale, shift, another atom that fits as well or None) for the values by size."""
    low = min(star.values())
    scale = math.gcd(*(v - low for v in star.values()))
    for size in dict.fromkeys((scale, 1)):
        shift = low % size
        scaled = {n: (v - shift) // size for n, v in star.items()}
        for fit in (_fit_floor, _fit_clamp, _fit_rest):
            if (fitted := fit(symbol, scaled)) is not None:
                return fitted[0], size, shift, fitted[1]
    return None


def _fit_floor(symbol: str, star: dict[int, int]) -> tuple[Atom, Atom | None] | None:
    """(factor * n + offset) // divisor with the smallest divisor."""
    first, last = min(star), max(star)
    slope, slack = Fraction(star[last] - star[first], last - first), Fraction(1, last - first)
    for divisor in range(1, 65):
        for factor in range(math.ceil((slope - slack) * divisor), math.floor((slope + slack) * divisor) + 1):
            if not factor or math.gcd(factor, divisor) != 1:
                continue
            begin = max(divisor * v - factor * n for n, v in star.items())
            end = min(divisor * v - factor * n for n, v in star.items()) + divisor - 1
            if begin <= end:
                atom = Atom(symbol, factor, begin, divisor)
                return atom, None if begin == end else atom._replace(offset=end)
    return None


def _fit_clamp(symbol: str, star: dict[int, int]) -> tuple[Atom, Atom | None] | None:
    """n + offset, not below one number and not above another."""
    low, high = min(star.values()), max(star.values())
    inside = {v - n for n, v in star.items() if low < v < high}
    at_low, at_high = ([n for n, v in star.items() if v == edge] for edge in (low, high))
    if not inside and high == low + 1:  # nothing between them
        inside = {high - min(at_high)}
    if len(inside) != 1:
        return None
    offset = inside.pop()
    atom = Atom(
        symbol,
        offset=offset,
        low=low if min(at_low) + offset < low else None,
        high=high if max(at_high) + offset > high else None,
    )
    if any(atom.value(n) != v for n, v in star.items()) or (atom.low is None and atom.high is None):
        return None
    return atom, None


def _fit_rest(symbol: str, star: dict[int, int]) -> tuple[Atom, Atom | None] | None:
    """What is left of n, or lacks to a multiple."""
    fits = [
        atom
        for modulus in range(max(star.values()) + 1, 129)
        for factor in (-1, 1)
        for offset in range(modulus)
        if all((factor * n + offset) % modulus == v for n, v in star.items())
        for atom in (Atom(symbol, factor, offset, 1, modulus),)
    ]
    return (fits[0], fits[1] if len(fits) > 1 else None) if fits else None


def _telling(atom: Atom, rival: Atom | None, star: dict[int, int]) -> list[int]:
    """Sizes at which another form than the one that was found would show."""
    largest = max(star)
    if rival is not None:
        return [n for n in range(1, 4 * largest + 64) if atom.value(n) != rival.value(n)][:16]
    if atom.low is not None or atom.high is not None:
        edges = [edge - atom.offset for edge in (atom.low, atom.high) if edge is not None]
        return [edge + k for edge in edges for k in (-1, 0, 1, 2)]
    period = max(atom.divisor, atom.modulus)
    return list(range(largest + 1, largest + 2 * period + 4)) if len(star) < period + 4 else []


def _combined(
    parts: list[tuple[Atom, int, int]], value: int, base: tuple[int, ...], names: list[str]
) -> Iterator[Form]:
    """Of forms of each symbol: their product, their sum."""
    at = dict(zip(names, base, strict=True))

    def expanded(chosen: list[tuple[Atom, int, int]]) -> list[tuple[int, list[Atom]]]:
        terms: list[tuple[int, list[Atom]]] = [(1, [])]
        for atom, scale, shift in chosen:
            terms = [
                (f * by, [*atoms, *more])
                for f, atoms in terms
                for by, more in ((scale, [atom]), (shift, []))
                if by
            ]
        return terms

    sizes = [scale * atom.value(at[atom.symbol]) + shift for atom, scale, shift in parts]
    total = math.prod(sizes)
    if total:
        factor = Fraction(value, total)
        yield Form([(f * factor.numerator, atoms) for f, atoms in expanded(parts)], factor.denominator)
    rest = value - sum(sizes)
    yield Form([t for part in parts for t in expanded([part])] + [(rest, [])])
