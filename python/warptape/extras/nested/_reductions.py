"""Reductions and softmax of nested tensors: over the ragged dim, over others, over all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warptape import core as wt

from ...core import Tensor
from ...core.by_name import map_tensors, name_of
from ._ops import Args, Named, inner_dim, named, ndim, wrapped_dim
from ._tensor import HANDLERS, NestedTensor, handles, packed, padded_tensor, plain, unsupported, wrap


def _padding(name: str, dtype: wt.dtype) -> Any:
    """What changes nothing in a reduction."""
    if name in ("sum", "prod", "any", "all"):
        return {"sum": 0, "prod": 1, "any": False, "all": True}[name]
    if dtype is wt.bool:
        return name in ("amin", "min", "argmin")
    limits = wt.finfo(dtype) if dtype.is_floating_point else wt.iinfo(dtype)
    return limits.max if name in ("amin", "min", "argmin") else limits.min


def _split_dims(t: NestedTensor, dims: Any, name: str) -> tuple[list[int], bool]:
    """The dims of the values to reduce, and whether the ragged dim is among them, alone."""
    wanted = {wrapped_dim(d, ndim(t)) for d in (dims if isinstance(dims, (list, tuple)) else [dims])}
    ragged = t._ragged_idx
    if ragged in wanted and 0 not in wanted and len(wanted) > 1:
        raise RuntimeError(
            f"{name}(): reducing along a ragged and non-batch dimension is not supported for nested tensors"
        )
    if 0 in wanted and ragged not in wanted:
        raise RuntimeError(
            f"{name}(): reducing along the batch dimension but not the ragged dimension is not supported for "
            "nested tensors"
        )
    return sorted(d - 1 for d in wanted if d), wanted == {ragged}


def _over_ragged(t: NestedTensor, name: str, keepdim: bool, options: Named) -> Any:
    at, holes = t._ragged_idx, t._ragged.lengths is not None
    if holes:
        raise RuntimeError(
            f"{name}(): reducing across the ragged dimension is not supported for non-contiguous nested "
            "tensors with holes"
        )
    if name == "mean":
        total = _over_ragged(t, "sum", True, options)
        lengths = t._ragged.each_length.reshape(-1, *[1] * (total.ndim - 1))
        out = total / lengths
        return out if keepdim else out.squeeze(at)
    padded = padded_tensor(t, _padding(name, plain(t).dtype))
    if name in ("max", "min") and padded.size(at) == 0:
        raise RuntimeError(f"{name}(): expected a sequence that is not empty")
    return getattr(padded, name)(at, keepdim=keepdim, **options)


@handles("sum mean prod any all amax amin max min argmax argmin")
def _reduction(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    name = name_of(func)
    bound = named("input dim keepdim", args, kwargs)
    t, dim, keepdim = bound.pop("input"), bound.pop("dim", None), bound.pop("keepdim", False)
    if isinstance(dim, Tensor) or "other" in bound:
        return HANDLERS[f"{name}imum"](func, args, kwargs)
    if not isinstance(t, NestedTensor) or "out" in bound:
        raise unsupported(f"{name} into a dense tensor")
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        out = getattr(plain(packed(t)), name)(**bound)
        return out.reshape([1] * ndim(t)) if keepdim else out
    dims, ragged_alone = _split_dims(t, dim, name)
    if ragged_alone:
        return _over_ragged(t, name, keepdim, bound)
    at = t._ragged_idx
    if at - 1 in dims:
        t = packed(t)
    values = plain(t)
    out = getattr(values, name)(dims if isinstance(dim, (list, tuple)) else dims[0], keepdim=keepdim, **bound)
    if at - 1 in dims:  # and the batch with it
        return map_tensors(out, lambda o: o.unsqueeze(0)) if keepdim else out
    left = at if keepdim else at - sum(d < at - 1 for d in dims)
    return map_tensors(out, lambda o: wrap(o, t, left))


@handles("maximum minimum")
def _larger(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    """max and min of two tensors, by the pointwise op."""
    op = getattr(wt, name_of(func).removesuffix("imum") + "imum")
    return HANDLERS.other(op, args, kwargs)


@handles("softmax log_softmax")
def _softmax(func: Callable[..., Any], args: Args, kwargs: Named) -> Any:
    name = name_of(func)
    bound = named("input dim", args, kwargs)
    t, dim = bound["input"], bound.get("dim")
    if not isinstance(dim, int):
        raise RuntimeError(
            f"{name}(): not supported for dimensions of type '{type(dim).__name__}' for NestedTensor"
        )
    dim = wrapped_dim(dim, ndim(t))
    if dim == 0:
        raise RuntimeError(
            f"{name}(): not supported when reducing across the batch dimension for NestedTensor"
        )
    more: Named = {k: v for k, v in bound.items() if k == "dtype"}
    if dim != t._ragged_idx:
        return wrap(getattr(wt, name)(plain(t), inner_dim(t, dim, name), **more), t)
    if t._ragged.lengths is not None:
        raise RuntimeError(
            f"{name}(): not supported where lengths is not None if reducing across the ragged dimension for "
            "NestedTensor"
        )
    padded = getattr(wt, name)(padded_tensor(t, float("-inf")), dim, **more)
    return wrap(t._ragged.from_padded(padded, dim), t)
