"""Tensors put into others, combined, repeated or made to fit: functions and Tensor methods."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from . import _C
from ._arguments import checked, same_device
from ._functions import iinfo
from ._statistics import bincount
from ._tensor import Tensor

_ops = _C._functions
broadcast_tensors, diff, meshgrid = _ops.broadcast_tensors, _ops.diff, _ops.meshgrid
nonzero, promote_types = _ops.nonzero, _ops.promote_types

__all__ = [
    "addr",
    "as_strided_scatter",
    "block_diag",
    "bucketize",
    "cartesian_prod",
    "cdist",
    "combinations",
    "diagonal_scatter",
    "index_reduce",
    "isin",
    "kron",
    "msort",
    "narrow_copy",
    "renorm",
    "scatter_reduce",
    "select_scatter",
    "slice_scatter",
    "unique_consecutive",
    "unravel_index",
    "unsafe_chunk",
    "unsafe_split",
]


# ---- sets and sequences


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each of `elements` is among `test_elements`; whether not, with `invert`. Either may be a
    number."""
    tensors = [t for t in (elements, test_elements) if isinstance(t, Tensor)]
    if not tensors:
        raise TypeError("isin(): expected a tensor among elements and test_elements")
    x, among = (
        t if isinstance(t, Tensor) else _ops.full((), t, device=tensors[0].device)
        for t in (elements, test_elements)
    )
    ordered = among.reshape(-1).sort()[0]
    if not ordered.numel():
        return _ops.full(x.shape, invert, dtype=_C.bool, device=x.device)
    dtype = promote_types(x.dtype, ordered.dtype)
    x, ordered = x.to(dtype), ordered.to(dtype)
    at = _ops.searchsorted(ordered, x.contiguous()).clamp(max=ordered.numel() - 1)
    return (ordered[at] != x) if invert else (ordered[at] == x)


def bucketize(
    input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False, out: Tensor | None = None
) -> Tensor:
    """The index of the bucket of each element: of the first boundary (n,) that is not below it, or with
    `right` above."""
    if boundaries.ndim != 1:
        raise _C.ShapeError(
            f"bucketize: boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})"
        )
    return _ops.searchsorted(boundaries, input, out_int32=out_int32, right=right, out=out)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The input without elements (slices along `dim`) equal to the one before; then inverse and counts, if
    asked."""
    x = input.reshape(1, -1) if dim is None else input.movedim(dim, 0).reshape(input.shape[dim], -1).mT
    n = x.shape[1]
    fresh = _ops.ones(n, dtype=_C.bool, device=input.device)
    if n > 1:
        fresh[1:] = (x[:, 1:] != x[:, :-1]).any(0)
    found = [input.reshape(-1)[fresh] if dim is None else input.index_select(dim, nonzero(fresh).reshape(-1))]
    run = fresh.long().cumsum(0) - 1
    if return_inverse:
        found.append(run.reshape(input.shape) if dim is None else run)
    if return_counts:
        found.append(bincount(run, minlength=int(fresh.sum())))
    return found[0] if len(found) == 1 else tuple(found)


def msort(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Sorted along the first dim."""
    found = input.sort(0)[0] if input.ndim else input.clone()
    return found if out is None else _C._write_out("msort", out, found)


def cartesian_prod(*tensors: Any) -> Tensor:
    """All combinations of one element of each tensor (n_i,), as rows; of one tensor, the tensor."""
    given: Sequence[Tensor] = (
        tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors
    )
    for t in given:
        if not isinstance(t, Tensor):
            raise TypeError(f"cartesian_prod(): expected tensors, got {type(t).__name__}")
        if t.ndim != 1:
            raise _C.ShapeError(f"cartesian_prod: Expect a 1D vector, but got shape {list(t.shape)}")
    if len(given) == 1:
        return given[0]
    return _ops.stack([grid.reshape(-1) for grid in meshgrid(*given, indexing="ij")], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """The combinations of `r` elements of (n,), as rows, in the order of itertools."""
    if input.ndim != 1 or r < 0:
        raise RuntimeError(
            f"combinations: expected a 1D vector and r >= 0, got shape {list(input.shape)} and {r}"
        )
    if r == 0:
        return input.new_empty(0)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    n = input.shape[0]
    count = math.comb(max(n + r - 1, 0), r) if with_replacement else math.comb(n, r)
    index, rows = _ops.empty(count, r, dtype=_C.int64), choose(range(n), r)
    for begin in range(0, count, 1 << 16):
        part = list(itertools.islice(rows, 1 << 16))
        index[begin : begin + len(part)] = _C._tensor(part, _C.int64, index.device, False, True)
    return input[index.to(input.device)]


def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """The coordinates, by dim, of flat indices into a tensor of `shape`."""
    if indices.is_floating_point() or indices.is_complex() or indices.dtype is _C.bool:
        raise TypeError(f"expected 'indices' to be integer dtype, but got {indices.dtype}")
    sizes = [shape] if isinstance(shape, int) else list(shape)
    indices = indices.long()
    found = []
    for size in reversed(sizes):
        found.append(indices % size)
        indices = indices // size
    return tuple(reversed(found))


# ---- put into others


def block_diag(*tensors: Any) -> Tensor:
    """The matrices (vectors are rows, numbers 1 x 1) along the diagonal of one, zeros elsewhere."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    blocks = []
    for i, t in enumerate(given):
        if not isinstance(t, Tensor):
            raise TypeError(f"block_diag(): expected tensors, got {type(t).__name__}")
        if t.ndim > 2:
            raise _C.ShapeError(
                f"block_diag: Input tensors must have 2 or fewer dimensions. Input {i} has {t.ndim}"
            )
        blocks.append(t.reshape(1, -1) if t.ndim < 2 else t)
    width = sum(b.shape[1] for b in blocks)
    rows, left = [], 0
    for b in blocks:
        sides = (b.new_zeros(b.shape[0], left), b, b.new_zeros(b.shape[0], width - left - b.shape[1]))
        rows.append(_ops.cat(sides, 1))
        left += b.shape[1]
    return _ops.cat(rows, 0)


def _written(op: str, input: Tensor, src: Tensor, view: Any) -> Tensor:
    """A copy of `input` with `src` in the place that `view` gives."""
    same_device(op, input, src)
    found = input.clone()
    place = view(found)
    if place.shape != src.shape:
        raise _C.ShapeError(
            f"expected src to have a size equal to the slice: {tuple(place.shape)}, got {tuple(src.shape)}"
        )
    place.copy_(src)
    return found


def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A copy of the input with `src` in the place of a slice."""
    return _written(
        "slice_scatter", input, src, lambda t: t[(slice(None),) * (dim % t.ndim) + (slice(start, end, step),)]
    )


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of the input with `src` in the place of one index along `dim`."""
    return _written("select_scatter", input, src, lambda t: t.select(dim, index))


def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy of the input with `src` in the place of a diagonal."""
    return _written("diagonal_scatter", input, src, lambda t: t.diagonal(offset, dim1, dim2))


def as_strided_scatter(
    input: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A copy of the input with `src` in the place of a strided view."""
    return _written("as_strided_scatter", input, src, lambda t: t.as_strided(size, stride, storage_offset))


_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def scatter_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """A copy of the input in which those of `src` with the same index along `dim` are reduced to one.

    Args:
        input: where the results go.
        dim: along which `index` counts.
        index: int64, no larger than `src` in any dim.
        src: what is reduced.
        reduce: "sum", "prod", "mean", "amax" or "amin".
        include_self: whether the input's own elements take part.
        out: where the result goes.

    The gradient of amax and amin is shared equally by those that reach it. Raises RuntimeError for another
    `reduce`.
    """
    if reduce not in _REDUCTIONS:
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}.")
    src = src[tuple(slice(0, n) for n in index.shape)]
    ones = _ops.ones_like(src)
    taken = input.new_zeros(input.shape).scatter_add(dim, index, ones.detach())
    hit = taken > 0
    start = input if include_self else input.masked_fill(hit, {"prod": 1.0}.get(reduce, 0.0))
    if reduce in ("sum", "mean"):
        found = start.scatter_add(dim, index, src)
        if reduce == "mean":
            count = (taken + int(include_self)).masked_fill(~hit, 1)
            found = found / count if input.is_floating_point() else found.div(count, rounding_mode="floor")
    else:
        found = _by_rounds(start, dim, index, src, reduce, hit & (not include_self))
    return found if out is None else _C._write_out("scatter_reduce", out, found)


def _rounds(index: Tensor, dim: int) -> Tensor:
    """For each element, how many before it along `dim` have the same index."""
    n, d = index.shape[dim], dim % index.ndim
    ordered, order = index.sort(dim, stable=True)
    place = _ops.arange(n, device=index.device).reshape([-1 if i == d else 1 for i in range(index.ndim)])
    place = place.expand(index.shape)
    begins = _ops.cat([place.narrow(dim, 0, 1) == 0, diff(ordered, dim=dim) != 0], dim)
    start = (place * begins).cummax(dim)[0]
    return _ops.zeros_like(index).scatter(dim, order, place - start)


def _combined(start: Tensor, dim: int, index: Tensor, src: Tensor, combine: Any) -> Tensor:
    """One element of each place at a time: as many rounds as the most frequent index has occurrences."""
    n = start.shape[dim]
    found = _ops.cat([start, start.narrow(dim, 0, 1)], dim)  # what is not of a round goes to the place behind
    round_of = _rounds(index, dim)
    for k in range(int(round_of.max()) + 1):
        at = _ops.where(round_of == k, index, n)
        found = found.scatter(dim, at, combine(found.gather(dim, at), src))
    return found.narrow(dim, 0, n)


def _by_rounds(start: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, replaced: Tensor) -> Tensor:
    if index.numel() == 0:
        return start
    if reduce == "prod":
        return _combined(start, dim, index, src, _ops.mul)
    pick = _ops.maximum if reduce == "amax" else _ops.minimum
    far = start.new_full((), _extreme(start, lowest=reduce == "amax"))
    first = _ops.where(replaced, far, start.detach())
    best = _combined(first, dim, index, src.detach(), pick)
    if not (start.requires_grad or src.requires_grad):
        return best
    reaches = (src == best.gather(dim, index)).to(src.dtype)
    own = ((start == best) & ~replaced).to(src.dtype)
    share = own.scatter_add(dim, index, reaches).clamp(min=1)
    shared = (start * own / share).scatter_add(dim, index, src * reaches / share.gather(dim, index))
    return best + (shared - shared.detach())  # the value as it is, with the gradient of the shares


def _extreme(like: Tensor, lowest: bool) -> Any:
    if like.is_floating_point():
        return float("-inf") if lowest else float("inf")
    info = iinfo(like.dtype)
    return info.min if lowest else info.max


def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`scatter_reduce` with one index (n,) for each slice of `source` along `dim`."""
    if reduce == "sum":
        raise RuntimeError(
            "index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got sum."
        )
    shape = [-1 if i == dim % source.ndim else 1 for i in range(source.ndim)]
    return scatter_reduce(
        input,
        dim,
        index.long().reshape(shape).expand(source.shape),
        source,
        reduce,
        include_self=include_self,
    )


# ---- products and distances


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: each element of the input times all of `other`, in blocks."""
    n = max(input.ndim, other.ndim)
    a = input.reshape((1,) * (n - input.ndim) + tuple(input.shape))
    b = other.reshape((1,) * (n - other.ndim) + tuple(other.shape))
    blocks = a.reshape([s for size in a.shape for s in (size, 1)]) * b.reshape(
        [s for size in b.shape for s in (1, size)]
    )
    return blocks.reshape([p * q for p, q in zip(a.shape, b.shape)])


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * the outer product of two vectors."""
    outer = _ops.outer(vec1, vec2)
    if outer.dtype is _C.bool and input.dtype is _C.bool:
        return (outer & bool(alpha)) | (input & bool(beta))
    if any(isinstance(n, float) for n in (alpha, beta)) and not (
        outer.is_floating_point() or outer.is_complex() or input.is_floating_point() or input.is_complex()
    ):
        raise _C.DtypeError(
            "addr: For integral input tensors, argument alpha and beta must not be floating point numbers."
        )
    scaled = outer if alpha == 1 else outer * alpha
    return scaled if beta == 0 else scaled + (input if beta == 1 else input * beta)


def cdist(
    x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary"
) -> Tensor:
    """The p-norm distances (*, n, m) between the rows of (*, n, d) and of (*, m, d)."""
    modes = (
        "use_mm_for_euclid_dist_if_necessary",
        "use_mm_for_euclid_dist",
        "donot_use_mm_for_euclid_dist",
    )
    if compute_mode not in modes:
        raise ValueError(f"{compute_mode} is not a valid value for compute_mode")
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise _C.ShapeError(
            "cdist: X1 and X2 must have at least two dimensions and the same number of columns, got shapes "
            f"{tuple(x1.shape)} and {tuple(x2.shape)}"
        )
    if p < 0:
        raise RuntimeError("cdist only supports non-negative p values")
    many = max(x1.shape[-2], x2.shape[-2]) > 25
    if p == 2 and (compute_mode == modes[1] or (compute_mode == modes[0] and many)):
        squares = x1.square().sum(-1, keepdim=True) + x2.square().sum(-1).unsqueeze(-2) - 2 * (x1 @ x2.mT)
        far = squares > 0
        return _ops.where(far, squares.clamp(min=0).masked_fill(~far, 1).sqrt(), 0)
    rows = max(1, _CDIST_NUMBERS // max(1, x2.numel()))
    if x1.ndim > 2 and x2.ndim == 2:
        rows = max(1, rows // max(1, math.prod(x1.shape[:-2])))
    if x1.shape[-2] <= rows:
        return _distances(x1, x2, p)
    # A block's differences are there only while it is computed, and once more in backward.
    from .utils.checkpoint import checkpoint

    return _ops.cat(
        [
            checkpoint(_distances, part, x2, p, use_reentrant=False, preserve_rng_state=False)
            for part in x1.split(rows, -2)
        ],
        -2,
    )


_CDIST_NUMBERS = 1 << 20  # differences in memory at once


def _distances(x1: Tensor, x2: Tensor, p: float) -> Tensor:
    found = _C._linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), float(p), (-1,))
    if p == 0 and x1.shape[-1] and (x1.requires_grad or x2.requires_grad):  # whose gradient is 0
        never = _ops.zeros((), dtype=_C.bool, device=x1.device)
        return found + _ops.where(never, x1[..., :1] + x2[..., :1].mT, 0)
    return found


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """The slices along `dim`, scaled down to a p-norm of at most `maxnorm`."""
    if p <= 0 or maxnorm < 0:
        raise RuntimeError(f"renorm: expected positive p and maxnorm >= 0, got {p} and {maxnorm}")
    others = tuple(i for i in range(input.ndim) if i != dim % input.ndim)
    norms = _C._linalg.vector_norm(input, float(p), others, True)
    return input * _ops.where(norms > maxnorm, maxnorm / (norms + 1e-7), 1.0).to(input.dtype)


# ---- copies and parts


def narrow_copy(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`narrow` as a copy."""
    return input.narrow(dim, start, length).clone()


def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """`chunk`."""
    return input.chunk(chunks, dim)


def unsafe_split(tensor: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """`split`."""
    return tensor.split(split_size, dim)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
    if _name not in (
        "block_diag",
        "bucketize",
        "cartesian_prod",
        "cdist",
        "combinations",
        "isin",
        "unravel_index",
    ):
        setattr(Tensor, _name, globals()[_name])


# ---- in place, methods only


def _fill_diagonal_(self: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Writes a number along the main diagonal; with `wrap` again after each block of as many rows as
    columns."""
    if self.ndim < 2 or (self.ndim > 2 and len(set(self.shape)) != 1):
        raise RuntimeError(
            "fill_diagonal_: expected at least 2 dimensions, all of one size beyond two, got shape "
            f"{tuple(self.shape)}"
        )
    strides: Any = self.stride()
    count = min(self.shape)
    self.as_strided((count,), (sum(strides),), self.storage_offset()).fill_(fill_value)
    if wrap and self.ndim == 2:
        width = self.shape[1] + 1
        for top in range(width, self.shape[0], width):
            _fill_diagonal_(self[top:], fill_value)
    return self


def _resize_(self: Tensor, *sizes: Any, memory_format: Any = None) -> Tensor:
    """Takes on another shape; elements are kept in their order, new ones are not set. Views no longer share
    where the tensor grows beyond its memory."""
    shape = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if self.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    if tuple(shape) == tuple(self.shape):
        return self
    made = self.new_empty(shape)
    kept = min(made.numel(), self.numel())
    made.reshape(-1)[:kept] = self.reshape(-1)[:kept]
    self.data = made
    return self


def _resize_as_(self: Tensor, other: Tensor, memory_format: Any = None) -> Tensor:
    """`resize_` to the shape of another."""
    return _resize_(self, other.shape)


def _sum_to_size(self: Tensor, *size: Any) -> Tensor:
    """The sums that undo broadcasting from `size`."""
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    extra = self.ndim - len(shape)
    dims = [*range(extra), *(i + extra for i, n in enumerate(shape) if n == 1 != self.shape[i + extra])]
    if extra < 0 or any(n not in (1, self.shape[i + extra]) for i, n in enumerate(shape)):
        raise RuntimeError(f"size {{{list(shape)}}} is not expandable to size {{{list(self.shape)}}}.")
    return self.sum(dims, keepdim=True).reshape(shape) if dims else self


def _put_(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Writes `source` at flat indices, or adds it."""
    flat = self.reshape(-1)
    flat = flat.index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return self.copy_(flat.reshape(self.shape))


def _index_reduce_(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`index_reduce` in place."""
    return self.copy_(index_reduce(self.clone(), dim, index, source, reduce, include_self=include_self))


def _scatter_reduce_(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`scatter_reduce` in place."""
    return self.copy_(scatter_reduce(self.clone(), dim, index, src, reduce, include_self=include_self))


def _renorm_(self: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """`renorm` in place."""
    return self.copy_(renorm(self.clone(), p, dim, maxnorm))


def _apply_(self: Tensor, callable: Any) -> Tensor:
    """Replaces each element by what a Python function makes of it. Slow."""
    flat = [callable(x) for x in self.reshape(-1).tolist()]
    return self.copy_(_C._tensor(flat, self.dtype, self.device, False, True).reshape(self.shape))


def _map_(self: Tensor, tensor: Tensor, callable: Any) -> Tensor:
    """Replaces each element by what a Python function makes of it and of `tensor`'s. Slow."""
    a, b = broadcast_tensors(self, tensor)
    flat = [callable(x, y) for x, y in zip(a.reshape(-1).tolist(), b.reshape(-1).tolist())]
    return self.copy_(_C._tensor(flat, self.dtype, self.device, False, True).reshape(self.shape))


def _new_empty_strided(self: Tensor, size: Sequence[int], stride: Sequence[int], **options: Any) -> Tensor:
    """A tensor of the same kind with given strides, not set."""
    return _ops.empty_strided(size, stride, **{"dtype": self.dtype, "device": self.device, **options})


for _method in (
    _fill_diagonal_,
    _resize_,
    _resize_as_,
    _sum_to_size,
    _put_,
    _index_reduce_,
    _scatter_reduce_,
    _renorm_,
    _apply_,
    _map_,
    _new_empty_strided,
):
    _method.__name__ = _method.__name__.removeprefix("_")
    setattr(Tensor, _method.__name__, checked(_method))
