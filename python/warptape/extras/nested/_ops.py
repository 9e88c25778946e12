"""Ops on nested tensors: what they say of themselves, elementwise ops, views, products.

Shapes: B sequences, * ragged, R the rows of all; t is [B, *, ..] and its values [R, ..], with R at
t._ragged_idx - 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from warptape import _C
from warptape import core as wt

from ...core import Tensor
from ...core.by_name import is_pointwise, map_tensors, name_of, tells_facts
from ._ragged import NestedInt
from ._tensor import (
    HANDLERS,
    NestedTensor,
    handles,
    packed,
    padded_tensor,
    plain,
    shape_of,
    unsupported,
    wrap,
)

Args = tuple[Any, ...]
Named = dict[str, Any]


def named(names: str, args: Args, kwargs: Named) -> Named:
    """The arguments of a call, by name."""
    kwargs = {"dim" if k == "axis" else "input" if k == "self" else k: v for k, v in kwargs.items()}
    return dict(zip(names.split(), args)) | kwargs


def wrapped_dim(dim: int, ndim: int) -> int:
    """A dim counted from the front. IndexError for one that is not there."""
    if not -ndim <= dim < ndim:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {dim})"
        )
    return dim % ndim


def inner_dim(t: NestedTensor, dim: int, name: str) -> int:
    """The dim of the values that a dim is. RuntimeError for that of the batch and the ragged one."""
    dim = wrapped_dim(dim, ndim(t))
    if dim == 0:
        raise RuntimeError(f"{name}(): not supported for NestedTensor on dim=0")
    if dim == t._ragged_idx:
        raise RuntimeError(f"{name}(): not supported for NestedTensor on ragged dim")
    return dim - 1


def ndim(t: NestedTensor) -> int:
    """Its dims."""
    return plain(t).ndim + 1


# ---- what it says of itself ----


@handles(
    "get.dtype get.device get.is_meta get.is_cuda get.is_cpu get.is_sparse get.is_quantized get.itemsize"
)
@handles("get.is_leaf get.requires_grad get.grad_fn get.retains_grad get._version get.output_nr get.names")
@handles("get.is_inference backward register_post_accumulate_grad_hook register_hook")
@handles("storage untyped_storage storage_offset item is_pinned is_shared get.nbytes __bool__")
def _of_values(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    return func(*args, **kwargs)


@handles("requires_grad_ retain_grad share_memory_ zero_ fill_ normal_ uniform_ detach_")
def _changes_values(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    func(*args, **kwargs)
    return args[0]


@handles("get.shape size")
def _size(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    dim = named("input dim", args, kwargs).get("dim")
    shape = shape_of(args[0])
    return wt.Size(shape) if dim is None else shape[wrapped_dim(dim, len(shape))]


@handles("get.ndim dim ndimension")
def _ndim(func: Callable[..., Any], args: Args, kwargs: Named) -> int:
    return ndim(args[0])


@handles("stride")
def _stride(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    t = args[0]
    inner = plain(t).stride()
    dim = named("input dim", args, kwargs).get("dim")
    strides = (t._ragged.symbol * inner[t._ragged_idx - 1], *inner)
    return strides if dim is None else strides[wrapped_dim(dim, len(strides))]


@handles("numel nelement")
def _numel(func: Callable[..., Any], args: Args, kwargs: Named) -> int:
    t = args[0]
    if t._ragged.lengths is None:
        return plain(t).numel()
    sizes = list(plain(t).shape)
    del sizes[t._ragged_idx - 1]
    return int(t._ragged.lengths.sum()) * math.prod(sizes)


@handles("is_contiguous")
def _is_contiguous(func: Callable[..., Any], args: Args, kwargs: Named) -> bool:
    return args[0]._ragged.lengths is None and bool(func(*args, **kwargs))


@handles("contiguous")
def _contiguous(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    t = packed(args[0])
    values = func(t, *args[1:], **kwargs)
    return t if values is t else wrap(values, t)


@handles("get.grad get._grad")
def _gradient(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    g = func(*args)
    if g is None or isinstance(g, NestedTensor):
        return g
    args[0].grad = g = wrap(g, args[0])  # the same object next time
    return g


@handles("get.data")
def _data(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    return wrap(func(*args), args[0])


@handles("is_same_size")
def _is_same_size(func: Callable[..., Any], args: Args, kwargs: Named) -> bool:
    return len({shape_of(t) if isinstance(t, NestedTensor) else tuple(t.shape) for t in args}) == 1


# ---- elementwise ----


@handles("to cpu cuda float double half bfloat16 int long bool short char byte type clone detach pin_memory")
@handles("zeros_like ones_like empty_like full_like rand_like randn_like randint_like dropout alpha_dropout")
@handles("bernoulli")
def _each(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    """Ops that keep the shape, of one nested tensor."""
    t = args[0] if args else kwargs["input"]
    if kwargs.get("layout") is not None:
        kwargs = {k: v for k, v in kwargs.items() if k != "layout"}
    out = func(*args, **kwargs)
    if isinstance(out, str):  # type() without an argument
        return out
    return t if out is t else wrap(out, t)


def _mismatch(name: str, a: Any, b: Any) -> RuntimeError:
    return RuntimeError(
        f"cannot call binary pointwise function {name} with inputs of shapes {a} and {b}; nested tensors "
        "have one structure where they share their offsets: see torch.nested.nested_tensor_from_jagged"
    )


def _values_for(t: Any, like: NestedTensor, name: str) -> Tensor:
    """An argument of a pointwise op as what is broadcast to the values of `like`."""
    shape, at = shape_of(like), like._ragged_idx
    if isinstance(t, NestedTensor):
        other = shape_of(t)
        if len(other) != len(shape) or t._ragged_idx != at or other[: at + 1] != shape[: at + 1]:
            raise _mismatch(name, shape, other)
        return plain(t)
    dense = tuple(t.shape)
    if len(dense) > len(shape):
        raise NotImplementedError(f"{name}: broadcasting NT with T with larger dim")
    while t.ndim and t.size(0) == 1 and t.ndim < len(shape):
        t = t.squeeze(0)
    while t.ndim == len(shape) and t.size(0) == 1:  # of all sequences alike
        if t.size(at) != 1:
            raise _mismatch(name, shape, dense)
        return t.squeeze(0)  # type: ignore[no-any-return]
    if t.ndim < len(shape):
        before_ragged = t.ndim - (len(shape) - at)  # where its dim that meets the ragged one is
        if t.ndim and before_ragged >= 0 and t.size(before_ragged) != 1:
            raise _mismatch(name, shape, dense)
        return t  # type: ignore[no-any-return]
    longest = 1 if t.size(at) == 1 else like._ragged.most
    if dense[0] != shape[0] or t.size(at) < longest or like._ragged.lengths is not None:
        raise _mismatch(name, shape, dense)
    return like._ragged.from_padded(t, at)


def _pointwise(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    name = name_of(func)
    nested: list[NestedTensor] = []
    map_tensors((args, kwargs), lambda t: nested.append(t) if isinstance(t, NestedTensor) else None)
    if any(isinstance(a, NestedInt) for a in (*args, *kwargs.values())):
        raise RuntimeError(f"{name}: invalid argument, the size of a ragged dim is no number")
    first, in_place = nested[0], (name.endswith("_") and not name.startswith("__")) or name.startswith("__i")
    if (in_place and args[0] is not first) or "out" in kwargs:
        raise unsupported(f"{name} into a dense tensor")

    def change(t: Any) -> Any:
        return t if t is first else _values_for(t, first, name)

    args, kwargs = map_tensors((args, kwargs), change)
    out = func(*args, **kwargs)
    return first if in_place else map_tensors(out, lambda v: v if v is first else wrap(v, first))


def _any_op(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    name = name_of(func)
    if tells_facts(name):
        return func(*args, **kwargs)
    if is_pointwise(func) or name in _ARITHMETIC:
        return _pointwise(func, args, kwargs)
    raise unsupported(name)


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_UNARY = ("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC = frozenset(
    [f"__{prefix}{op}__" for op in _BINARY for prefix in ("", "r", "i")] + [f"__{op}__" for op in _UNARY]
)
HANDLERS.other = _any_op


@handles("copy_")
def _copy(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    t, source = args[0], args[1]
    if not isinstance(source, NestedTensor) or not isinstance(t, NestedTensor):
        raise RuntimeError("copy_(): expected two nested tensors")
    if shape_of(t) != shape_of(source):
        a, b = t._ragged.length_list, source._ragged.length_list
        if a != b or t._ragged.lengths is not None or t._ragged_idx != source._ragged_idx:
            raise RuntimeError(
                "copy_(): expected compatible input and src shapes, but got: "
                f"{shape_of(t)} and {shape_of(source)}"
            )
        source = packed(source)
    func(t, source, *args[2:], **kwargs)
    return t


# ---- views ----


@handles("transpose swapaxes swapdims")
def _transpose(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    bound = named("input dim0 dim1", args, kwargs)
    t, dims = bound["input"], [v for k, v in bound.items() if k != "input"]
    a, b = (wrapped_dim(d, ndim(t)) for d in dims)
    if a == b:
        return t
    if 0 in (a, b):
        raise ValueError("Transpose is not supported on the batch dimension for jagged NT")
    at = {a: b, b: a}.get(t._ragged_idx, t._ragged_idx)
    return wrap(plain(t).transpose(a - 1, b - 1), t, at)


@handles("get.mT get.mH mT mH adjoint")
def _matrix_transpose(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    return _transpose(func, (args[0], -2, -1), {})


@handles("permute")
def _permute(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    t, dims = args[0], kwargs.get("dims", args[1:])
    dims = dims[0] if len(dims) == 1 and isinstance(dims[0], (list, tuple)) else dims
    order = [wrapped_dim(d, ndim(t)) for d in dims]
    if sorted(order) != list(range(ndim(t))):
        raise ValueError(f"permute(): expected each of {ndim(t)} dims once, got {list(dims)}")
    if order[0] != 0:
        raise ValueError("Permute is not supported on the batch dimension for jagged NT")
    return wrap(plain(t).permute([d - 1 for d in order[1:]]), t, order.index(t._ragged_idx))


def _shape_argument(name: str, args: Args, kwargs: Named) -> list[Any]:
    rest = kwargs.get(name, args[1:])
    return list(rest[0] if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else rest)


@handles("view reshape")
def _view(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    """Sizes that begin with those up to the ragged one."""
    t, name = args[0], name_of(func)
    sizes = _shape_argument("shape" if "shape" in kwargs else "size", args, kwargs)
    if sizes and isinstance(sizes[0], _C.dtype):
        return wrap(func(*args, **kwargs), t)
    shape, at = shape_of(t), t._ragged_idx
    fits = all(n == m or n == -1 for n, m in zip(sizes[: at + 1], shape))
    if len(sizes) <= at or not fits:
        raise RuntimeError(f"{name}(): cannot view shape {shape} as {tuple(sizes)}")
    inner = [*plain(t).shape[:at], *sizes[at + 1 :]]
    return wrap(getattr(plain(t), name)(inner), t)


@handles("unflatten")
def _unflatten(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    bound = named("input dim sizes", args, kwargs)
    t, sizes = bound["input"], bound["sizes"]
    dim = inner_dim(t, bound["dim"], "unflatten")
    at = t._ragged_idx + (len(sizes) - 1 if dim < t._ragged_idx - 1 else 0)
    return wrap(plain(t).unflatten(dim, sizes), t, at)


@handles("flatten")
def _flatten(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    bound = named("input start_dim end_dim", args, kwargs)
    t = bound["input"]
    start = inner_dim(t, bound.get("start_dim", 0), "flatten")
    end = inner_dim(t, bound.get("end_dim", -1), "flatten")
    at = t._ragged_idx
    if start <= at - 1 <= end:
        raise RuntimeError("flatten(): not supported for NestedTensor on ragged dim")
    return wrap(plain(t).flatten(start, end), t, at - (end - start) if end < at - 1 else at)


@handles("unsqueeze")
def _unsqueeze(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    bound = named("input dim", args, kwargs)
    t = bound["input"]
    dim = wrapped_dim(bound["dim"], ndim(t) + 1)
    if dim == 0:
        raise RuntimeError("unsqueeze(): not supported for NestedTensor on dim=0")
    return wrap(plain(t).unsqueeze(dim - 1), t, t._ragged_idx + (dim <= t._ragged_idx))


@handles("squeeze")
def _squeeze(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    bound = named("input dim", args, kwargs)
    t, dim = bound["input"], bound.get("dim")
    if not isinstance(dim, int):
        raise RuntimeError("squeeze(): for NestedTensor, dim must be given, as one number")
    dim = inner_dim(t, dim, "squeeze")
    gone = plain(t).size(dim) == 1 and dim < t._ragged_idx - 1
    return wrap(plain(t).squeeze(dim), t, t._ragged_idx - gone)


@handles("expand expand_as broadcast_to")
def _expand(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    t, name = args[0], name_of(func)
    if name == "expand_as":
        other = args[1] if len(args) > 1 else kwargs["other"]
        if not isinstance(t, NestedTensor):
            return wrap(_values_for(t, other, name).expand(plain(other).shape), other)
        sizes = shape_of(other) if isinstance(other, NestedTensor) else tuple(other.shape)
    else:
        sizes = tuple(_shape_argument("size", args, kwargs))
    shape, at = shape_of(t), t._ragged_idx
    if len(sizes) != len(shape) or not all(n in (m, -1) for n, m in zip(sizes[: at + 1], shape)):
        raise RuntimeError(f"expand(): cannot expand shape {shape} -> {sizes}")
    return wrap(plain(t).expand(*sizes[1:at], -1, *sizes[at + 1 :]), t)


@handles("select")
def _select(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    bound = named("input dim index", args, kwargs)
    t = bound["input"]
    if wrapped_dim(bound["dim"], ndim(t)) == 0:
        return unbound(t)[bound["index"]]
    dim = inner_dim(t, bound["dim"], "select")
    return wrap(plain(t).select(dim, bound["index"]), t, t._ragged_idx - (dim < t._ragged_idx - 1))


@handles("__getitem__")
def _getitem(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    """One sequence by a number; ints, slices and None in the dims that are neither batch nor ragged."""
    t, index = args
    items = list(index) if isinstance(index, tuple) else [index]
    if any(not isinstance(i, (int, slice, type(None), type(...))) or isinstance(i, bool) for i in items):
        raise unsupported("__getitem__ by tensors or lists")
    if items and isinstance(items[0], int):
        sequence = unbound(t)[items[0]]
        return sequence[tuple(items[1:])] if len(items) > 1 else sequence
    if ... in items:
        place, used = items.index(...), sum(i is not None and i is not ... for i in items)
        items[place : place + 1] = [slice(None)] * (ndim(t) - used)
    dim, at = 0, t._ragged_idx
    for item in items:
        if dim in (0, t._ragged_idx) and item != slice(None):
            where = "dim=0" if dim == 0 else "ragged dim"
            raise RuntimeError(f"slice(): not supported for NestedTensor on {where}")
        at += (item is None) - isinstance(item, int) if dim < t._ragged_idx else 0
        dim += item is not None
    return wrap(plain(t)[tuple(items[1:])], t, at)


def unbound(t: NestedTensor) -> tuple[Tensor, ...]:
    """A tensor of each sequence."""
    ragged, dim = t._ragged, t._ragged_idx - 1
    if ragged.row is None:
        rows = ragged.packed_rows(plain(t), dim)
        return tuple(wt.split(rows, ragged.length_list, dim))
    starts = ragged.offsets.tolist()
    return tuple(plain(t).narrow(dim, s, n) for s, n in zip(starts, ragged.length_list))


@handles("unbind")
def _unbind(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    bound = named("input dim", args, kwargs)
    if wrapped_dim(bound.get("dim", 0), ndim(bound["input"])):
        raise RuntimeError("unbind(): only supported for NestedTensor on dim=0")
    return unbound(bound["input"])


@handles("narrow split split_with_sizes chunk tensor_split")
def _along_inner(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    name = name_of(func)
    first = {"narrow": "input dim start length", "split": "input split_size_or_sections dim"}
    bound = named(first.get(name, "input sizes dim"), args, kwargs)
    t = bound.pop("input")
    dim = inner_dim(t, bound.pop("dim", 0), name)
    out = getattr(plain(t), name)(
        *([dim] if name == "narrow" else []), *bound.values(), **({} if name == "narrow" else {"dim": dim})
    )
    return map_tensors(out, lambda v: wrap(v, t))


@handles("cat concat concatenate stack")
def _cat(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    name = "stack" if name_of(func) == "stack" else "cat"
    bound = named("tensors dim", args, kwargs)
    tensors, dim = list(bound["tensors"]), bound.get("dim", 0)
    first = next(t for t in tensors if isinstance(t, NestedTensor))
    shape, at = shape_of(first), first._ragged_idx
    dim = wrapped_dim(dim, len(shape) + (name == "stack"))
    if dim <= at if name == "stack" else dim in (0, at):
        where = "dim=0" if dim == 0 else "ragged dim"
        raise RuntimeError(f"{name}(): not supported for NestedTensor on {where}")
    parts = []
    for t in tensors:
        values = _values_for(t, first, name)
        if not isinstance(t, NestedTensor):
            values = values.expand(plain(first).shape)
        parts.append(values)
    return wrap(getattr(wt, name)(parts, dim - 1), first)


# ---- products and layers ----


@handles("linear")
def _linear(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    bound = named("input weight bias", args, kwargs)
    t = bound["input"]
    if not isinstance(t, NestedTensor) or t._ragged_idx >= ndim(t) - 1:
        raise RuntimeError(
            "linear(): expected a nested input whose last dim is not ragged, and dense weights"
        )
    return wrap(func(*args, **kwargs), t)


@handles("layer_norm rms_norm")
def _norm(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    bound = named("input normalized_shape", args, kwargs)
    t, shape = bound["input"], bound["normalized_shape"]
    if isinstance(shape, int) or len(shape) >= ndim(t) - t._ragged_idx:
        if not isinstance(shape, int) or t._ragged_idx >= ndim(t) - 1:
            raise RuntimeError(
                f"{name_of(func)}(): normalizing over the ragged or the batch dim is not supported for "
                "NestedTensor"
            )
    return wrap(func(*args, **kwargs), t)


@handles("embedding")
def _embedding(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    bound = named("input weight", args, kwargs)
    if isinstance(bound["weight"], NestedTensor):
        raise unsupported("embedding of a nested weight")
    return wrap(func(*args, **kwargs), bound["input"])


@handles("matmul __matmul__ __rmatmul__ bmm mm")
def _matmul(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    name = name_of(func)
    a, b = (args[0], args[1]) if len(args) > 1 else (args[0], next(iter(kwargs.values())))
    if name == "__rmatmul__":
        a, b = b, a
    nested = [t for t in (a, b) if isinstance(t, NestedTensor)]
    dims = [ndim(t) if isinstance(t, NestedTensor) else t.ndim for t in (a, b)]
    if len(nested) == 1:
        t, other = nested[0], b if nested[0] is a else a
        at, n = t._ragged_idx, ndim(t)
        ragged_stays = at < n - 1 if t is a else at >= 2 and at != n - 2
        if ragged_stays and other.ndim == 2 and n > 2:
            return wrap(plain(a) @ plain(b), t)
        if ragged_stays and other.ndim == n >= 3:
            product = padded_tensor(t, 0) @ other if t is a else other @ padded_tensor(t, 0)
            return wrap(packed(t)._ragged.from_padded(product, at), packed(t))
    elif dims[0] == dims[1] == 3 and (a._ragged_idx, b._ragged_idx) == (2, 1):
        if a._ragged.symbol == b._ragged.symbol:  # over the ragged dim
            return padded_tensor(a, 0) @ padded_tensor(b, 0)
    elif (
        dims[0] == dims[1] > 3 and shape_of(a)[:2] == shape_of(b)[:2] and a._ragged_idx == b._ragged_idx == 1
    ):
        return wrap(plain(a) @ plain(b), a)
    shapes = [shape_of(t) if isinstance(t, NestedTensor) else tuple(t.shape) for t in (a, b)]
    raise RuntimeError(f"matmul(): not supported between inputs of shapes {shapes[0]} and {shapes[1]}")
