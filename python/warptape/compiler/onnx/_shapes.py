"""Ops that move elements, make tensors, pick and reduce."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from warptape import core as wt

from ... import _C
from ._builder import Builder, Names, maps, same_size
from ._errors import UnsupportedOperatorError

Args = SimpleNamespace


def _axes(b: Builder, dims: list[int]) -> str:
    return b.constant(dims, wt.int64)


def _rank(b: Builder, x: object) -> int:
    return len(b.sizes(x))


def _in_shape_of(b: Builder, x: object, out: int) -> str:
    """The elements in the shape of the result. One size that varies follows from the others."""
    sizes = b.sizes(out)
    varies = [k for k, s in enumerate(sizes) if not isinstance(s, int)]
    if len(varies) == 1 and 0 not in sizes:
        sizes = [-1 if k == varies[0] else s for k, s in enumerate(sizes)]
        return b.node("Reshape", b(x), b.ints(sizes))
    return b.node("Reshape", b(x), b.ints(sizes), allowzero=1)


@maps("aliasing=reshape")  # those whose result has other elements, as a slice, stand below by their names
def _reshape(b: Builder, a: Args, out: int) -> str:
    if hasattr(a, "dtype"):
        raise UnsupportedOperatorError("view of another dtype")
    return _in_shape_of(b, a.input, out)


@maps("expand", "expand_as", "broadcast_to")
def _expand(b: Builder, a: Args, out: int) -> str:
    return b.node("Expand", b(a.input), b.ints(b.sizes(out)))


@maps("unsqueeze")
def _unsqueeze(b: Builder, a: Args, out: int) -> str:
    return b.node("Unsqueeze", b(a.input), _axes(b, [a.dim]))


def _transposed(b: Builder, x: object, order: list[int]) -> str:
    return b.node("Transpose", b(x), perm=order)


@maps("permute")
def _permute(b: Builder, a: Args, out: int) -> str:
    rank = _rank(b, a.input)
    return _transposed(b, a.input, [d % rank for d in a.dims])


@maps("transpose")
def _transpose(b: Builder, a: Args, out: int) -> str:
    order = list(range(_rank(b, a.input)))
    if not order:
        return b.node("Identity", b(a.input))
    order[a.dim0], order[a.dim1] = order[a.dim1], order[a.dim0]
    return _transposed(b, a.input, order)


@maps("t")
def _t(b: Builder, a: Args, out: int) -> str:
    if _rank(b, a.input) < 2:
        return b.node("Identity", b(a.input))
    return _transposed(b, a.input, [1, 0])


@maps("movedim")
def _movedim(b: Builder, a: Args, out: int) -> str:
    rank = _rank(b, a.input)
    to = {d % rank: s % rank for s, d in zip(a.source, a.destination, strict=True)}
    rest = iter([d for d in range(rank) if d not in to.values()])
    return _transposed(b, a.input, [to[d] if d in to else next(rest) for d in range(rank)])


@maps("cat")
def _cat(b: Builder, a: Args, out: int) -> str:
    parts = [t for t in a.tensors if b.sizes(t) != [0] or len(b.sizes(out)) == 1]
    return b.node("Concat", *[b.operand(t, b.dtype(out)) for t in parts], axis=a.dim)


@maps("stack")
def _stack(b: Builder, a: Args, out: int) -> str:
    axes = _axes(b, [a.dim])
    return b.node(
        "Concat", *[b.node("Unsqueeze", b.operand(t, b.dtype(out)), axes) for t in a.tensors], axis=a.dim
    )


def _sliced(b: Builder, x: str, dim: int, start: Any, end: Any, step: int = 1) -> str:
    return b.node("Slice", x, b.ints([start]), b.ints([end]), _axes(b, [dim]), _axes(b, [step]))


@maps("_slice", "narrow")
def _slice(b: Builder, a: Args, out: int) -> str:
    step = getattr(a, "step", 1)
    if isinstance(a.start, _C._Ref):
        raise UnsupportedOperatorError("narrow by a tensor")
    x, length = b(a.input), a.length
    if isinstance(a.start, int) and isinstance(length, int):
        return _sliced(b, str(x), a.dim, a.start, a.start + length * step, step)
    if step != 1:
        raise UnsupportedOperatorError("a slice with a step of a size that varies")
    end = b.node("Add", b.ints([a.start]), b.ints([length]))
    return b.node("Slice", x, b.ints([a.start]), end, _axes(b, [a.dim]))


@maps("slice")
def _slice_range(b: Builder, a: Args, out: int) -> str:
    return _sliced(b, str(b(a.input)), a.dim, a.start, a.end, a.step)  # bounds mean what they do here


@maps("select")
def _select(b: Builder, a: Args, out: int) -> str:
    return b.node("Gather", b(a.input), b.scalar(a.index), axis=a.dim)


@maps("split", "chunk", "tensor_split")
def _split(b: Builder, a: Args, out: int) -> Names:
    source = a.tensor if hasattr(a, "tensor") else a.input
    sizes = [b.sizes(i)[a.dim] for i in b.results]
    if all(isinstance(s, int) for s in sizes):
        pieces = b.node("Split", b(source), b.ints(sizes), outputs=len(sizes), axis=a.dim)
        return [pieces] if len(sizes) == 1 else pieces
    first = b.ints(sizes[:-1]) if len(sizes) > 1 else None  # the last has what is left
    length = b.ints([b.sizes(source)[a.dim]])
    if first is None:
        return [b.node("Identity", b(source))]
    last = b.node("Sub", length, b.node("ReduceSum", first, keepdims=1))
    return b.node("Split", b(source), b.node("Concat", first, last, axis=0), outputs=len(sizes), axis=a.dim)


@maps("unbind")
def _unbind(b: Builder, a: Args, out: int) -> Names:
    numbers = range(len(b.results))
    return [b.node("Gather", b(a.input), b.constant(i, wt.int64), axis=a.dim) for i in numbers]


@maps("repeat", "tile")
def _repeat(b: Builder, a: Args, out: int) -> str:
    counts = a.repeats if hasattr(a, "repeats") else a.dims
    x, rank = b(a.input), _rank(b, a.input)
    if len(counts) > rank:
        x = b.node("Unsqueeze", x, _axes(b, list(range(len(counts) - rank))))
    return b.node("Tile", x, b.ints([1] * (rank - len(counts)) + list(counts)))


@maps("flip")
def _flip(b: Builder, a: Args, out: int) -> str:
    if not a.dims:
        return b.node("Identity", b(a.input))
    n = len(a.dims)
    starts, ends = _axes(b, [-1] * n), _axes(b, [-(1 << 62)] * n)
    return b.node("Slice", b(a.input), starts, ends, _axes(b, a.dims), _axes(b, [-1] * n))


@maps("index_select")
def _index_select(b: Builder, a: Args, out: int) -> str:
    return b.node("Gather", b(a.input), b(a.index), axis=a.dim)


@maps("embedding")
def _embedding(b: Builder, a: Args, out: int) -> str:
    if getattr(a, "max_norm", None) is not None:
        raise UnsupportedOperatorError("embedding with max_norm")
    table, rows = (a.weight, a.input) if hasattr(a, "input") else (a.weight, a.indices)
    return b.node("Gather", b(table), b(rows), axis=0)


@maps("gather")
def _gather(b: Builder, a: Args, out: int) -> str:
    if not b.sizes(a.input):
        raise UnsupportedOperatorError("gather from a tensor without dims")
    return b.node("GatherElements", b(a.input), b(a.index), axis=a.dim)


def _scattering(name: str, reduction: str | None) -> None:
    @maps(name)
    def _(b: Builder, a: Args, out: int) -> str:
        if not isinstance(getattr(a, "src", None), _C._Ref) or getattr(a, "reduce", None):
            raise UnsupportedOperatorError(f"{name} of a number, or with reduce")
        if not all(map(same_size, b.sizes(a.src), b.sizes(a.index))):
            raise UnsupportedOperatorError(f"{name} of a part of src")
        return b.node("ScatterElements", b(a.input), b(a.index), b(a.src), axis=a.dim, reduction=reduction)


_scattering("scatter", None)
_scattering("scatter_add", "add")


@maps("_index")
def _index(b: Builder, a: Args, out: int) -> str:
    indexed = [(d, t) for d, t in enumerate(a.indices) if t is not None]
    if any(b.dtype(t) in (wt.bool, wt.uint8) for _, t in indexed):
        raise UnsupportedOperatorError("an index that is a mask")
    if len(indexed) == 1:
        return b.node("Gather", b(a.input), b(indexed[0][1]), axis=indexed[0][0])
    if [d for d, _ in indexed] != list(range(len(indexed))):
        raise UnsupportedOperatorError("several index tensors that do not begin at the first dim")
    rank = _rank(b, out) - (_rank(b, a.input) - len(indexed))
    shape = b.ints(b.sizes(out)[:rank])
    last = _axes(b, [-1])
    parts = [b.node("Unsqueeze", b.node("Expand", b.operand(t, wt.int64), shape), last) for _, t in indexed]
    return b.node("GatherND", b(a.input), b.node("Concat", *parts, axis=-1))


# ---- new tensors -----------------------------------------------------------------------------------------


def _filled(b: Builder, out: int, value: object) -> str:
    return b.node("Expand", b.operand(value, b.dtype(out)), b.ints(b.sizes(out)))


@maps("copy")
def _copy(b: Builder, a: Args, out: int) -> str:
    return _filled(b, out, a.src)


@maps("fill")
def _fill(b: Builder, a: Args, out: int) -> str:
    return _filled(b, out, a.value)


@maps("zero", "zeros", "zeros_like", "new_zeros")
def _zeros(b: Builder, a: Args, out: int) -> str:
    return _filled(b, out, 0)


@maps("ones", "ones_like", "new_ones")
def _ones(b: Builder, a: Args, out: int) -> str:
    return _filled(b, out, 1)


@maps("full", "full_like", "new_full")
def _full(b: Builder, a: Args, out: int) -> str:
    return _filled(b, out, a.fill_value)


@maps("arange")
def _arange(b: Builder, a: Args, out: int) -> str:
    dtype = b.dtype(out)
    if dtype not in (wt.float64, wt.int64):  # Range takes few; sums of steps want many bits
        dtype = wt.float64 if dtype.is_floating_point else wt.int64
    numbers = (getattr(a, "start", 0), a.end, getattr(a, "step", 1))
    return b.cast(b.node("Range", *[b.operand(x, dtype) for x in numbers]), dtype, b.dtype(out))


def _triangle(name: str, upper: int) -> None:
    @maps(name)
    def _(b: Builder, a: Args, out: int) -> str:
        diagonal = b.constant(a.diagonal, wt.int64)
        if b.dtype(out) == wt.bool:  # which onnxruntime does not take
            x = b.node("Trilu", b.cast(str(b(a.input)), wt.bool, wt.int32), diagonal, upper=upper)
            return b.cast(x, wt.int32, wt.bool)
        return b.node("Trilu", b(a.input), diagonal, upper=upper)


_triangle("tril", 0)
_triangle("triu", 1)


# ---- reductions ------------------------------------------------------------------------------------------


def _dims(b: Builder, a: Args) -> list[int] | None:
    dim = getattr(a, "dim", None)
    if dim is None or dim == [] or not b.sizes(a.input):
        return None
    return [dim] if isinstance(dim, int) else list(dim)


def _reduced(b: Builder, kind: str, x: str, a: Args) -> str:
    dims = _dims(b, a)
    axes = None if dims is None else _axes(b, dims)
    return b.node(kind, x, axes, keepdims=int(getattr(a, "keepdim", False)))


def _reduction(name: str, kind: str) -> None:
    @maps(name)
    def _(b: Builder, a: Args, out: int) -> str:
        return _reduced(b, kind, b.operand(a.input, b.dtype(out)), a)


for _name, _kind in {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "prod": "ReduceProd",
    "amax": "ReduceMax",
    "amin": "ReduceMin",
}.items():
    _reduction(_name, _kind)


@maps("logsumexp")
def _logsumexp(b: Builder, a: Args, out: int) -> str:
    dtype = wt.float64 if b.dtype(out) == wt.float64 else wt.float32
    reduced = _reduced(b, "ReduceLogSumExp", b.operand(a.input, dtype), a)
    return b.cast(reduced, dtype, b.dtype(out))


def _extreme(name: str, kind: str, pick: str, elementwise: str) -> None:
    @maps(name)
    def _(b: Builder, a: Args, out: int) -> Names:
        if "other" in vars(a):
            return b.node(elementwise, b.operand(a.input, b.dtype(out)), b.operand(a.other, b.dtype(out)))
        value = _reduced(b, kind, str(b(a.input)), a)
        if not hasattr(a, "dim"):
            return value
        if not b.sizes(a.input):
            return [value, _filled(b, b.results[1], 0)]
        return [value, b.node(pick, b(a.input), axis=a.dim, keepdims=int(a.keepdim))]

    @maps(f"arg{name}")
    def _(b: Builder, a: Args, out: int) -> str:
        if a.dim is None or not b.sizes(a.input):
            flat = b.node("Reshape", b(a.input), _axes(b, [-1]))
            result = b.node(pick, flat, axis=0, keepdims=0)
            result = b.node("Reshape", result, b.ints(b.sizes(out)))
        else:
            result = b.node(pick, b(a.input), axis=a.dim, keepdims=int(a.keepdim))
        return b.cast(result, wt.int64, b.dtype(out))


_extreme("max", "ReduceMax", "ArgMax", "Max")
_extreme("min", "ReduceMin", "ArgMin", "Min")


def variance(b: Builder, a: Args, out: int) -> str:
    """var of arguments as var takes them."""
    x, dims = b(a.input), _dims(b, a)
    correction = getattr(a, "correction", None)
    unbiased = getattr(a, "unbiased", None)
    correction = (1 if unbiased in (None, True) else 0) if correction is None else correction
    sizes = b.sizes(a.input)
    reduced = sizes if dims is None else [sizes[d] for d in dims]
    axes = None if dims is None else _axes(b, dims)
    centred = b.node("Sub", x, b.node("ReduceMean", x, axes, keepdims=1))
    total = _reduced(b, "ReduceSum", b.node("Mul", centred, centred), a)
    count = b.node("ReduceProd", b.ints(reduced), keepdims=0)
    count = b.cast(count, wt.int64, b.dtype(out))
    return b.node("Div", total, b.node("Sub", count, b.constant(float(correction), b.dtype(out))))


@maps("var")
def _var(b: Builder, a: Args, out: int) -> str:
    return variance(b, a, out)


@maps("std")
def _std(b: Builder, a: Args, out: int) -> str:
    return b.node("Sqrt", variance(b, a, out))


@maps("norm", "vector_norm")
def _norm(b: Builder, a: Args, out: int) -> str:
    a.input = next(getattr(a, name) for name in ("input", "A", "x") if hasattr(a, name))
    order = a.p if hasattr(a, "p") else a.ord
    dims = _dims(b, a) or b.sizes(a.input)
    if hasattr(a, "A") and order not in (None, "fro") and len(dims) == 2:
        raise UnsupportedOperatorError("a norm of matrices other than Frobenius'")
    kind = {None: "ReduceL2", 2: "ReduceL2", 1: "ReduceL1", "fro": "ReduceL2"}.get(order)
    if kind is None:
        raise UnsupportedOperatorError(f"norm of order {order}")
    return _reduced(b, kind, b.operand(a.input, b.dtype(out)), a)


@maps("cumsum")
def _cumsum(b: Builder, a: Args, out: int) -> str:
    if not b.sizes(a.input):
        return b.operand(a.input, b.dtype(out))
    return b.node("CumSum", b.operand(a.input, b.dtype(out)), b.constant(a.dim, wt.int64))


def _any(b: Builder, x: str, a: Args) -> str:
    """Whether any of the elements, booleans, is true."""
    number = _reduced(b, "ReduceSum", b.cast(x, wt.bool, wt.int32), a)
    return b.node("Greater", number, b.constant(0, wt.int32))


@maps("any")
def _any_of(b: Builder, a: Args, out: int) -> str:
    reduced = _any(b, b.operand(a.input, wt.bool), a)
    return b.cast(reduced, wt.bool, b.dtype(out))


@maps("all")
def _all_of(b: Builder, a: Args, out: int) -> str:
    reduced = b.node("Not", _any(b, b.node("Not", b.operand(a.input, wt.bool)), a))
    return b.cast(reduced, wt.bool, b.dtype(out))


def _need_dims(b: Builder, a: Args) -> None:
    if not b.sizes(a.input):
        raise UnsupportedOperatorError("sorting a tensor without dims")


@maps("topk")
def _topk(b: Builder, a: Args, out: int) -> Names:
    _need_dims(b, a)
    return b.node("TopK", b(a.input), b.ints([a.k]), outputs=2, axis=a.dim, largest=int(a.largest), sorted=1)


@maps("sort")
def _sort(b: Builder, a: Args, out: int) -> Names:
    _need_dims(b, a)
    size = b.ints([b.sizes(a.input)[a.dim]])
    return b.node("TopK", b(a.input), size, outputs=2, axis=a.dim, largest=int(a.descending), sorted=1)
