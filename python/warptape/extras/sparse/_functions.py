"""What ops that convert, move or reduce do with sparse tensors: HANDLERS by the name of the function.

Where there is a choice, PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from ... import _C
from ...core import Tensor
from ...core.by_name import name_of
from ...core.op_facts import op_named
from ._tensor import HANDLERS, CompressedTensor, CooTensor, SparseTensor, by_rows, coordinates, flat_index

_ops: Any = _C._functions
handles = HANDLERS.replaces


def refuse(op: str, *given: Any) -> NotImplementedError:
    layouts = " and ".join(str(x.layout) for x in given if isinstance(x, Tensor))
    return NotImplementedError(
        f"{op} is not implemented for {layouts}; Tensor.to_dense() makes dense tensors"
    )


def as_coo(x: Any, op: str) -> CooTensor:
    if not isinstance(x, CooTensor):
        raise refuse(op, x)
    return x


def wrapped_dim(dim: int, ndim: int) -> int:
    if not -ndim <= dim < max(ndim, 1):
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {dim})"
        )
    return dim % max(ndim, 1)


# ---- conversions ----


@handles("to_dense")
def to_dense(x: Any, dtype: wt.dtype | None = None, *, masked_grad: bool | None = None) -> Tensor:
    """A dense tensor of the same elements."""
    index = tuple(x._index.unbind(0)) if isinstance(x, CooTensor) else coordinates(x)
    values = x._value if dtype is None else x._value.to(dtype)
    if not index:
        return values.sum(0)
    return values.new_zeros(x.shape).index_put(index, values, True)


@handles("to_sparse to_sparse_coo")
def to_sparse(x: Any, *args: Any, layout: wt.layout | None = None, **more: Any) -> Any:
    """In another sparse layout, by coordinates unless given."""
    if layout == wt.sparse_csr:
        return to_sparse_csr(x)
    if layout == wt.sparse_csc:
        return to_sparse_csc(x)
    if isinstance(x, CooTensor):
        return x
    if not x._by_rows:
        x = to_sparse_csr(x)
    return CooTensor.make(_ops.stack(coordinates(x)), x._value, x.shape, True)


@handles("to_sparse_csr")
def to_sparse_csr(x: Any, dense_dim: int | None = None) -> CompressedTensor:
    """By compressed rows."""
    _check_matrix("to_sparse_csr", x)
    crow, col, values = by_rows(x.coalesce() if isinstance(x, CooTensor) else x)
    return CompressedTensor.make(crow, col, values, x.shape, True)


@handles("to_sparse_csc")
def to_sparse_csc(x: Any, dense_dim: int | None = None) -> CompressedTensor:
    """By compressed columns."""
    _check_matrix("to_sparse_csc", x)
    if isinstance(x, CompressedTensor) and not x._by_rows:
        return x
    crow, col, values = by_rows(transpose(x.coalesce() if isinstance(x, CooTensor) else x, 0, 1))
    return CompressedTensor.make(crow, col, values, x.shape, False)


def _check_matrix(op: str, x: Any) -> None:
    if isinstance(x, CooTensor) and x._index.size(0) != 2:
        raise NotImplementedError(f"{op}: expected a matrix with 2 sparse dims, got {x._index.size(0)}")


# ---- the same places ----


def _of_values(name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    """What an elementwise op makes of zeros is zero: it is done to the values. Else NotImplemented."""
    op = op_named(name)
    if op is None or not op._is_pointwise or any(isinstance(a, Tensor) for a in (*args, *kwargs.values())):
        return NotImplemented
    if getattr(x._value.detach().new_zeros(1), name)(*args, **kwargs).any():
        return NotImplemented
    if isinstance(x, CooTensor) and not op._is_linear:
        x = x.coalesce()  # else what is named twice would not be added first
    return x._like(getattr(x._value, name)(*args, **kwargs))


# What the object itself knows, beside its attributes; autograd.grad asks for gradients of the values itself.
_OWN = frozenset(("size", "dim", "numel", "nelement", "__len__", "grad"))


def _other(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function without a handler."""
    name, result = name_of(func), NotImplemented
    with _C.DisableTorchFunctionSubclass():
        if name in _OWN or name.startswith(("get ", "is_")):
            return func(*args, **kwargs)
        if isinstance(args[0], SparseTensor):
            result = _of_values(name.removesuffix("_"), *args, **kwargs)
    if result is NotImplemented:
        layouts = [str(a.layout) for a in (*args, *kwargs.values()) if isinstance(a, SparseTensor)]
        raise NotImplementedError(
            f"{name} is not implemented for {', '.join(layouts) or 'sparse tensors'}; "
            "Tensor.to_dense() makes a dense tensor"
        )
    return args[0]._take(result) if name.endswith("_") else result


HANDLERS.other = _other
handles("neg negative")(lambda x: x._like(-x._value))


@handles("detach get.data alias")
def detach(x: Any) -> Any:
    """Without history; the values' memory is the same."""
    return x._like(x._value.detach())


@handles("clone")
def clone(x: Any, *, memory_format: wt.memory_format | None = None) -> Any:
    """A copy."""
    return x._like(x._value.clone())


@handles("requires_grad_")
def requires_grad_(x: Any, requires_grad: bool = True) -> Any:
    """Records gradients of the values."""
    if requires_grad and x._value._base is not None and x._value.is_leaf:
        x._value = x._value.detach()
    x._value.requires_grad_(requires_grad)
    return x


@handles("to")
def to(x: Any, *args: Any, **kwargs: Any) -> Any:
    """In another dtype, or on another device: as Tensor.to."""
    args = tuple(a._value if isinstance(a, SparseTensor) else a for a in args)
    values = x._value.to(*args, **kwargs)
    return x if values is x._value else x._like(values)


handles("cpu")(lambda x, *args, **kwargs: to(x, "cpu"))
handles("cuda")(lambda x, device=None, *args, **kwargs: to(x, "cuda" if device is None else device))
handles("type_as")(lambda x, other: to(x, other.dtype))
handles("get.layout")(lambda x: x.layout)
handles("get.is_sparse")(lambda x: x.is_sparse)
handles("is_coalesced")(lambda x: x.is_coalesced())
handles("stride")(lambda x, dim=None: (0,) * x.ndim if dim is None else 0)
handles("is_contiguous")(lambda x, **more: False)


@handles("zero_")
def zero_(x: Any) -> Any:
    """Without elements."""
    return x._take(zeros_like(x))


@handles("copy_")
def copy_(x: Any, src: Tensor, non_blocking: bool = False) -> Any:
    """Becomes src, in x's dtype and on its device."""
    if not isinstance(x, SparseTensor) or not isinstance(src, SparseTensor) or x.layout != src.layout:
        raise refuse("copy_", x, src)
    if x.shape != src.shape:
        raise _C.ShapeError(f"copy_: expected two sizes alike, got {x.shape} and {src.shape}")
    return x._take(to(src, x.device, x.dtype))


@handles("zeros_like empty_like")
def zeros_like(
    x: Any,
    *,
    dtype: wt.dtype | None = None,
    layout: wt.layout | None = None,
    device: Any = None,
    **more: Any,
) -> Any:
    """Without elements."""
    options: dict[str, Any] = {"dtype": dtype or x.dtype, "device": device or x.device}
    if isinstance(x, CooTensor):
        index = x._index.new_zeros((x._index.size(0), 0), device=options["device"])
        values = wt.zeros(0, *x._value.shape[1:], **options)
        return CooTensor.make(index, values, x.shape, True)
    ends = wt.zeros(x._ptr.size(0), dtype=x._ptr.dtype, device=options["device"])
    values = wt.zeros(0, *x._value.shape[1:], **options)
    return CompressedTensor.make(ends, ends[:0], values, x.shape, x._by_rows)


# ---- places ----


@handles("transpose swapaxes swapdims")
def transpose(x: Any, dim0: int, dim1: int) -> Any:
    """Two sparse dims swapped; a matrix by compressed rows becomes one by compressed columns."""
    a, b = wrapped_dim(dim0, x.ndim), wrapped_dim(dim1, x.ndim)
    if isinstance(x, CooTensor):
        order = list(range(x.ndim))
        order[a], order[b] = order[b], order[a]
        return permute(x, order)
    if a == b:
        return x
    if max(a, b) > 1:
        raise refuse("transpose of dense dims", x)
    size = (x.size(1), x.size(0), *x.shape[2:])
    return CompressedTensor.make(x._ptr, x._index, x._value, size, not x._by_rows)


@handles("t numpy_T T mT get.T get.mT")
def t(x: Any) -> Any:
    """The transpose of a matrix."""
    return transpose(x, 0, 1) if x.ndim > 1 else x


@handles("permute")
def permute(x: Any, *dims: Any) -> CooTensor:
    """The sparse dims, and the dense dims, each in another order."""
    order = [
        wrapped_dim(d, x.ndim) for d in (dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)
    ]
    x, sparse = as_coo(x, "permute"), x.sparse_dim()
    if sorted(order[:sparse]) != list(range(sparse)):
        raise refuse("permute of sparse among dense dims", x)
    values = x._value.permute(0, *(d - sparse + 1 for d in order[sparse:]))
    same = order[:sparse] == list(range(sparse))
    return CooTensor.make(
        x._index[order[:sparse]], values, tuple(x.shape[d] for d in order), same and x._coalesced
    )


@handles("unsqueeze")
def unsqueeze(x: Any, dim: int) -> CooTensor:
    """With a dim of size 1 more: sparse within the sparse dims, else dense."""
    x, dim, sparse = as_coo(x, "unsqueeze"), wrapped_dim(dim, x.ndim + 1), x.sparse_dim()
    size = (*x.shape[:dim], 1, *x.shape[dim:])
    if dim > sparse:
        return CooTensor.make(x._index, x._value.unsqueeze(dim - sparse + 1), size, x._coalesced)
    rows = [*x._index.unbind(0)]
    rows.insert(dim, x._index.new_zeros(x._index.size(1)))
    return CooTensor.make(_ops.stack(rows), x._value, size, x._coalesced)


@handles("select")
def select(x: Any, dim: int, index: int) -> Any:
    """One place of a dim: sparse by coordinates, dense where no sparse dim is left."""
    x, dim = to_sparse(x), wrapped_dim(dim, x.ndim)
    if not -x.size(dim) <= index < x.size(dim):
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {tuple(x.shape)} at dimension {dim}"
        )
    index, size, sparse = index % x.size(dim), (*x.shape[:dim], *x.shape[dim + 1 :]), x.sparse_dim()
    if dim >= sparse:
        return CooTensor.make(x._index, x._value.select(dim - sparse + 1, index), size, x._coalesced)
    here = x._index[dim] == index
    rest = [d for d in range(sparse) if d != dim]
    if not rest:
        return x._value[here].sum(0)
    return CooTensor.make(x._index[rest][:, here], x._value[here], size, x._coalesced)


@handles("__getitem__")
def getitem(x: Any, key: object) -> Any:
    """x[i], x[i, j] with numbers."""
    keys = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(k, int) and not isinstance(k, bool) for k in keys):
        raise refuse("indexing by other than numbers", x)
    for k in keys:
        x = select(x, 0, k) if isinstance(x, SparseTensor) else x[k]
    return x


@handles("index_select")
def index_select(x: Any, dim: int, index: Tensor) -> CooTensor:
    """Places of a dim in the order of `index`, which may name one twice."""
    x, dim, sparse = as_coo(x, "index_select"), wrapped_dim(dim, x.ndim), x.sparse_dim()
    size = (*x.shape[:dim], index.numel(), *x.shape[dim + 1 :])
    if dim >= sparse:
        return CooTensor.make(x._index, x._value.index_select(dim - sparse + 1, index), size, x._coalesced)
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < x.size(dim):
        raise IndexError(f"index_select(): index out of range for dim {dim} of size {x.size(dim)}")
    # The places by the dim's value, then those of each wanted value.
    order = x._index[dim].argsort(stable=True)
    starts = _ops._convert_indices_from_coo_to_csr(x._index[dim][order], x.size(dim))
    counts = (starts[1:] - starts[:-1])[index]
    new = wt.repeat_interleave(counts)
    before = (counts.cumsum(0) - counts)[new]
    old = order[starts[index][new] + wt.arange(new.size(0), device=new.device) - before]
    rows = [new if d == dim else row[old] for d, row in enumerate(x._index.unbind(0))]
    return CooTensor.make(_ops.stack(rows), x._value.index_select(0, old), size, False)


@handles("narrow_copy narrow")
def narrow(x: Any, dim: int, start: int, length: int) -> CooTensor:
    """Places start .. start + length of a sparse dim: a copy."""
    x, dim = as_coo(x, "narrow"), wrapped_dim(dim, x.ndim)
    if dim >= x.sparse_dim():
        raise refuse("narrow of a dense dim", x)
    start = start + x.size(dim) if start < 0 else start
    if length < 0 or not 0 <= start <= x.size(dim) - length:
        raise _C.ShapeError(f"narrow: {start} + {length} exceeds dimension size {x.size(dim)}")
    here = (x._index[dim] >= start) & (x._index[dim] < start + length)
    rows = [row[here] - (start if d == dim else 0) for d, row in enumerate(x._index.unbind(0))]
    size = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return CooTensor.make(_ops.stack(rows), x._value[here], size, x._coalesced)


@handles("cat concat concatenate")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> CooTensor:
    """Along a dim, all by coordinates."""
    parts = [as_coo(x, "cat") for x in tensors]
    dim, sparse, first = wrapped_dim(dim, parts[0].ndim), parts[0].sparse_dim(), parts[0]
    rest = [p.shape[:dim] + p.shape[dim + 1 :] for p in parts]
    if any(r != rest[0] or p.sparse_dim() != sparse for r, p in zip(rest, parts)):
        raise _C.ShapeError(
            f"cat: expected sizes alike but for dim {dim}, got {[tuple(p.shape) for p in parts]}"
        )
    if dim >= sparse:
        raise refuse("cat along a dense dim", first)
    rows, past = [], 0
    for p in parts:
        shift = p._index.new_zeros((sparse, 1))
        shift[dim] = past
        rows.append(p._index + shift)
        past += p.size(dim)
    size = (*first.shape[:dim], past, *first.shape[dim + 1 :])
    coalesced = dim == 0 and all(p._coalesced for p in parts)
    return CooTensor.make(_ops.cat(rows, 1), _ops.cat([p._value for p in parts]), size, coalesced)


@handles("stack")
def stack(tensors: Sequence[Tensor], dim: int = 0) -> CooTensor:
    """Along a new sparse dim."""
    return cat([unsqueeze(as_coo(x, "stack"), dim) for x in tensors], dim)


# ---- reductions ----


@handles("sum")
def sum(
    x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: wt.dtype | None = None
) -> Any:
    """The sum of all elements, a dense tensor; along dims it is sparse while a sparse dim is left."""
    if dtype is not None:
        x = to(x, dtype)
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return x._value.sum()
    dims = {wrapped_dim(d, x.ndim) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))}
    if isinstance(x, CompressedTensor) and not keepdim:
        raise RuntimeError("reduction operations on CSR tensors with keepdim=False is unsupported")
    total = _sum_along(to_sparse(x), dims, keepdim)
    return total if isinstance(x, CooTensor) else to_sparse(total, layout=x.layout)


def _sum_along(x: Any, dims: set[int], keepdim: bool) -> Any:
    sparse = x.sparse_dim()
    values = x._value
    if dense := [d - sparse + 1 for d in dims if d >= sparse]:
        values = values.sum(dense, keepdim)
    left = [d for d in range(sparse) if d not in dims]
    size = tuple(1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims)
    if not left:
        return values.sum(0) if not keepdim else values.sum(0).reshape(size)
    if keepdim:
        index = x._index * wt.tensor([[int(d not in dims)] for d in range(sparse)])
    else:
        index = x._index[left]
    kept = len(left) == sparse and x._coalesced
    result = CooTensor.make(index, values, size, kept)
    return result if kept else result.coalesce()


@handles("norm")
def norm(
    x: Any,
    p: float | str = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: wt.dtype | None = None,
) -> Tensor:
    """The norm of all elements."""
    if dim is not None:
        raise refuse("norm along a dim", x)
    x = x.coalesce() if isinstance(x, CooTensor) else x
    return wt.norm(x._value.flatten(), "fro" if p is None else p, dtype=dtype)


handles("any")(lambda x: x._value.any())
handles("isfinite")(lambda x: wt.ones(x.shape, dtype=wt.bool) & ~to_dense(~x._value.isfinite()))


def softmax(x: Any, dim: int, log: bool) -> CooTensor:
    """Over the elements that are there along a dim; those that are not count as -inf."""
    x, dim = as_coo(x, "softmax").coalesce(), wrapped_dim(dim, x.ndim)
    sparse = x.sparse_dim()
    if dim >= sparse:
        call = _C._nn.log_softmax if log else _C._nn.softmax
        return x._like(call(x._value, dim - sparse + 1))
    others = [d for d in range(sparse) if d != dim]
    flat = flat_index(x._index[others], tuple(x.shape[d] for d in others))
    groups, group = wt.unique(flat, return_inverse=True)
    none = x._value.new_zeros((groups.size(0), *x._value.shape[1:]))
    spread = group.reshape(-1, *(1,) * (x._value.ndim - 1)).expand_as(x._value)
    most = none.scatter_reduce(0, spread, x._value.detach(), "amax", include_self=False)
    shifted = x._value - most[group]
    powers = shifted.exp()
    total = none.index_add(0, group, powers)[group]
    return x._like(shifted - total.log() if log else powers / total)
