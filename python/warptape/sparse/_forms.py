"""What ops do with sparse tensors: FORMS by the name of the function. Where there is a choice, PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import warptape

from .. import _C
from .._tensor import Tensor
from ._tensor import FORMS, CompressedTensor, CooTensor, SparseTensor, by_rows, coordinates

_ops: Any = _C._functions


def form(*names: str) -> Callable[[Any], Any]:
    """Decorator: this is what ops of these names do."""

    def add(function: Any) -> Any:
        FORMS.update(dict.fromkeys(names, function))
        return function

    return add


def _refuse(op: str, *given: Any) -> NotImplementedError:
    layouts = " and ".join(str(x.layout) for x in given if isinstance(x, Tensor))
    return NotImplementedError(f"{op}: there is no form of it for {layouts}; Tensor.to_dense() makes dense tensors")


def _coo(x: Any, op: str) -> CooTensor:
    if not isinstance(x, CooTensor):
        raise _refuse(op, x)
    return x


def _dim(dim: int, ndim: int) -> int:
    if not -ndim <= dim < max(ndim, 1):
        raise IndexError(f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {dim})")
    return dim % max(ndim, 1)


# ---- conversions ----


@form("to_dense")
def to_dense(x: Any, dtype: Any = None, *, masked_grad: bool | None = None) -> Tensor:
    """A dense tensor of the same elements."""
    index = tuple(x._index.unbind(0)) if isinstance(x, CooTensor) else coordinates(x)
    values = x._value if dtype is None else x._value.to(dtype)
    if not index:
        return values.sum(0)
    return values.new_zeros(x.shape).index_put(index, values, True)


@form("to_sparse", "to_sparse_coo")
def to_sparse(x: Any, *args: Any, layout: Any = None, **more: Any) -> Any:
    """In another sparse layout, by coordinates unless given."""
    if layout == warptape.sparse_csr:
        return to_sparse_csr(x)
    if layout == warptape.sparse_csc:
        return to_sparse_csc(x)
    if isinstance(x, CooTensor):
        return x
    if not x._by_rows:
        x = to_sparse_csr(x)
    return CooTensor.make(_ops.stack(coordinates(x)), x._value, x.shape, True)


@form("to_sparse_csr")
def to_sparse_csr(x: Any, dense_dim: int | None = None) -> CompressedTensor:
    """By compressed rows."""
    _check_matrix("to_sparse_csr", x)
    crow, col, values = by_rows(x.coalesce() if isinstance(x, CooTensor) else x)
    return CompressedTensor.make(crow, col, values, x.shape, True)


@form("to_sparse_csc")
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


def _of_values(name: str, linear: bool) -> None:
    """An op that leaves zeros zeros, element by element: linear ones need no element named once."""

    def apply(x: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, CooTensor) and not linear:
            x = x.coalesce()
        return x._like(getattr(_ops, name)(x._value, *args, **kwargs))

    FORMS[name] = apply
    FORMS[name + "_"] = lambda x, *args, **kwargs: x._take(apply(x, *args, **kwargs))


for _name in """abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac isinf isnan isneginf isposinf
    log1p nan_to_num rad2deg relu round sgn sign signbit sin sinh sqrt square tan tanh trunc""".split():
    _of_values(_name, False)
for _name in ("neg", "negative", "conj", "real", "imag"):
    _of_values(_name, True)


@form("pow")
def pow(x: Any, exponent: Any) -> Any:
    """Each element to a positive power."""
    if isinstance(exponent, Tensor) or exponent <= 0:
        raise RuntimeError("pow: expected a number above 0 as exponent of a sparse tensor: the result were dense")
    x = x.coalesce() if isinstance(x, CooTensor) else x
    return x._like(x._value**exponent)


@form("detach", "data", "alias")
def detach(x: Any) -> Any:
    """Without history; the values' memory is the same."""
    return x._like(x._value.detach())


@form("clone")
def clone(x: Any, *, memory_format: Any = None) -> Any:
    """A copy."""
    return x._like(x._value.clone())


@form("requires_grad_")
def requires_grad_(x: Any, requires_grad: bool = True) -> Any:
    """Records gradients of the values."""
    if requires_grad and x._value._base is not None and x._value.is_leaf:
        x._value = x._value.detach()
    x._value.requires_grad_(requires_grad)
    return x


@form("to", "cuda", "cpu")
def to(x: Any, *args: Any, **kwargs: Any) -> Any:
    """In another dtype, or on another device: as Tensor.to."""
    args = tuple(a._value if isinstance(a, SparseTensor) else a for a in args)
    values = x._value.to(*args, **kwargs)
    return x if values is x._value else x._like(values)


FORMS["cpu"] = lambda x, *args, **kwargs: to(x, "cpu")
FORMS["cuda"] = lambda x, device=None, *args, **kwargs: to(x, "cuda" if device is None else device)
FORMS["type_as"] = lambda x, other: to(x, other.dtype)
_DTYPES = {"long": _C.int64, "int": _C.int32, "short": _C.int16, "char": _C.int8, "byte": _C.uint8}
_DTYPES |= {"float": _C.float32, "double": _C.float64, "half": _C.float16, "bfloat16": _C.bfloat16}
_DTYPES |= {"bool": _C.bool, "cfloat": _C.complex64, "cdouble": _C.complex128}
for _name, _dtype in _DTYPES.items():
    FORMS[_name] = lambda x, *, memory_format=None, dtype=_dtype: to(x, dtype)
FORMS["layout"] = lambda x: x.layout
FORMS["is_sparse"] = lambda x: x.is_sparse
FORMS["is_coalesced"] = lambda x: x.is_coalesced()
FORMS["stride"] = lambda x, dim=None: (0,) * x.ndim if dim is None else 0
FORMS["is_contiguous"] = lambda x, **more: False


# ---- products ----


def _check_product(x: Any, other: Any) -> None:
    if x.ndim != 2 or other.ndim not in (1, 2) or x.size(1) != other.size(0):
        raise _C.ShapeError(f"mm: expected (m, k) and (k, n), got {tuple(x.shape)} and {tuple(other.shape)}")
    if x._value.ndim != 1:
        raise _refuse("mm", x, other)


def mm_dense(x: Any, dense: Tensor, reduce: str = "sum") -> Tensor:
    """A sparse matrix (m, k) times a matrix (k, n) or a vector (k)."""
    _check_product(x, dense)
    if x.dtype != dense.dtype:
        raise _C.DtypeError(f"expected m1 and m2 to have the same dtype, but got: {x.dtype} != {dense.dtype}")
    flat = dense if dense.ndim == 2 else dense.unsqueeze(1)
    found = _C._private._csr_matmul(*by_rows(x), flat, reduce)
    return found if dense.ndim == 2 else found.squeeze(1)


def mm_sparse(x: Any, other: Any) -> Any:
    """A sparse matrix times another: every element of x meets those of a row of other."""
    _check_product(x, other)
    crow, col, values = by_rows(other)
    rows, columns = coordinates(x)
    counts = (crow[1:] - crow[:-1]).index_select(0, columns)
    mine = warptape.repeat_interleave(counts)  # of each product, the element of x
    before = (counts.cumsum(0) - counts).index_select(0, mine)
    place = warptape.arange(mine.size(0), device=mine.device) - before
    theirs = crow.index_select(0, columns.index_select(0, mine)) + place
    index = _ops.stack([rows.index_select(0, mine), col.index_select(0, theirs).to(rows.dtype)])
    products = x._value.index_select(0, mine) * values.index_select(0, theirs)
    found = CooTensor.make(index.long(), products, (x.size(0), other.size(1)), False).coalesce()
    return found if isinstance(x, CooTensor) else to_sparse_csr(found)


@form("mm", "matmul", "mv", "dsmm", "spmm", "__matmul__")
def matmul(x: Any, other: Any, *, out: Any = None) -> Any:
    """A sparse matrix times a matrix or a vector, the other way round, or both sparse."""
    if out is not None:
        raise _refuse("matmul(out=)", x, other)
    if isinstance(x, SparseTensor):
        return mm_sparse(x, other) if isinstance(other, SparseTensor) else mm_dense(x, other)
    if x.ndim == 1:
        return mm_dense(transpose(other, 0, 1), x)
    if x.ndim > 2:
        return matmul(x.flatten(0, -2), other).unflatten(0, x.shape[:-1])
    return mm_dense(transpose(other, 0, 1), x.t()).t()


@form("__rmatmul__")
def rmatmul(x: Any, other: Any) -> Any:
    """matmul(other, x)."""
    return matmul(other, x)


@form("linear")
def linear(input: Any, weight: Any, bias: Tensor | None = None) -> Any:
    """nn.functional.linear with a sparse weight (or input)."""
    out = matmul(input, transpose(weight, 0, 1) if isinstance(weight, SparseTensor) else weight.t())
    return out if bias is None else out + bias


@form("bmm")
def bmm(x: Any, other: Any) -> Tensor:
    """Sparse matrices [b, m, k], by coordinates, times dense [b, k, n]: as one matrix with blocks."""
    x = _coo(x, "bmm")
    if x._index.size(0) != 3 or isinstance(other, SparseTensor):
        raise _refuse("bmm", x, other)
    (b, m, k), index = x.shape, x._index
    if other.ndim != 3 or other.shape[:2] != (b, k):
        raise _C.ShapeError(f"bmm: expected (b, m, k) and (b, k, n), got {x.shape} and {other.shape}")
    both = _ops.stack([index[0] * m + index[1], index[0] * k + index[2]])
    blocks = CooTensor.make(both, x._value, (b * m, b * k), x._coalesced)
    return mm_dense(blocks, other.reshape(b * k, -1)).reshape(b, m, -1)


@form("addmm")
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * input + alpha * (mat1 @ mat2)."""
    product = matmul(mat1, mat2)
    return (input if beta == 1 else input * beta) + (product if alpha == 1 else product * alpha)


# ---- arithmetic ----


@form("add", "add_", "sub", "subtract", "__add__", "__radd__", "__sub__")
def add(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    """x + alpha * other: sparse where both are."""
    if not isinstance(x, SparseTensor):
        if not isinstance(x, Tensor):
            raise _refuse("add", other)
        return x + to_dense(other) * alpha
    if not isinstance(other, SparseTensor):
        if not isinstance(other, Tensor):
            raise _refuse("add of a number", x)
        return to_dense(x) + other * alpha
    if x.shape != other.shape:
        raise _C.ShapeError(f"add: expected two sizes alike, got {x.shape} and {other.shape}")
    second = other if alpha == 1 else mul(other, alpha)
    if x._index is second._index and x.layout == second.layout:
        return x._like(x._value + second._value)
    a, b = to_sparse(x), to_sparse(second)
    if a._index.size(0) != b._index.size(0):
        raise _refuse("add of different sparse dims", x, other)
    values = _ops.cat([a._value, b._value])
    found = CooTensor.make(_ops.cat([a._index, b._index], 1), values, x.shape, False)
    if isinstance(x, CooTensor):
        return found.coalesce() if a._coalesced and b._coalesced else found
    return to_sparse(found, layout=x.layout)


def sub(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    """x - alpha * other."""
    return add(x, other, alpha=-alpha)


def _add_(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    if not isinstance(x, SparseTensor):
        return x.add_(to_dense(other), alpha=alpha)
    return x._take(add(x, other, alpha=alpha))


FORMS.update(sub=sub, subtract=sub, __sub__=sub, add_=_add_, __iadd__=_add_)
FORMS["sub_"] = FORMS["__isub__"] = lambda x, other, *, alpha=1: _add_(x, other, alpha=-alpha)
FORMS["rsub"] = FORMS["__rsub__"] = lambda x, other: add(FORMS["neg"](x), other)


def _scaled(op: str, x: Any, other: Any) -> Any:
    """x (sparse) times or divided by a number or a dense tensor, at x's places."""
    function = getattr(_ops, op)
    if not isinstance(other, Tensor) or other.ndim == 0:
        return x._like(function(x._value, other))
    if other.ndim > x.ndim:
        raise _refuse(op, x, other)
    places = tuple(x._index.unbind(0)) if isinstance(x, CooTensor) else coordinates(x)
    at = other.broadcast_to(x.shape)[places]
    return x._like(function(x._value, at))


@form("mul", "multiply", "__mul__", "__rmul__")
def mul(x: Any, other: Any) -> Any:
    """Element by element: the result is sparse."""
    if not isinstance(x, SparseTensor):
        return mul(other, x)
    if not isinstance(other, SparseTensor):
        return _scaled("mul", x, other)
    if x.shape != other.shape:
        raise _refuse("mul of different sizes", x, other)
    found = _common(to_sparse(x).coalesce(), to_sparse(other).coalesce())
    return found if isinstance(x, CooTensor) else to_sparse(found, layout=x.layout)


def _common(a: CooTensor, b: CooTensor) -> CooTensor:
    """The products at the places that both have."""
    from ._tensor import flat_index

    sizes = tuple(a.shape[: a._index.size(0)])
    one, two = flat_index(a._index, sizes), flat_index(b._index, sizes)
    if two.numel() == 0:
        return CooTensor.make(a._index[:, :0], a._value[:0] * 1, a.shape, True)
    at = warptape.searchsorted(two, one).clamp(max=two.numel() - 1)
    here = two[at] == one
    values = a._value[here] * b._value[at[here]]
    return CooTensor.make(a._index[:, here], values, a.shape, True)


@form("div", "divide", "true_divide", "__truediv__")
def div(x: Any, other: Any) -> Any:
    """x (sparse) divided by a number or a dense tensor: the result is sparse."""
    if not isinstance(x, SparseTensor) or isinstance(other, SparseTensor):
        raise _refuse("div", x, other)
    return _scaled("div", x, other)


FORMS["mul_"] = FORMS["__imul__"] = lambda x, other: _in_place("mul_", x, other)
FORMS["div_"] = FORMS["__itruediv__"] = lambda x, other: _in_place("div_", x, other)


def _in_place(op: str, x: Any, other: Any) -> Any:
    if not isinstance(x, SparseTensor) or isinstance(other, SparseTensor):
        raise _refuse(op, x, other)
    if isinstance(other, Tensor) and other.ndim:
        return x._take(_scaled(op[:-1], x, other))
    getattr(x._value, op)(other)
    return x


@form("zero_")
def zero_(x: Any) -> Any:
    """Without elements."""
    return x._take(zeros_like(x))


@form("copy_")
def copy_(x: Any, src: Any, non_blocking: bool = False) -> Any:
    """Becomes src, in x's dtype and on its device."""
    if not isinstance(x, SparseTensor) or not isinstance(src, SparseTensor) or x.layout != src.layout:
        raise _refuse("copy_", x, src)
    if x.shape != src.shape:
        raise _C.ShapeError(f"copy_: expected two sizes alike, got {x.shape} and {src.shape}")
    return x._take(to(src, x.device, x.dtype))


@form("zeros_like", "empty_like")
def zeros_like(x: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, **more: Any) -> Any:
    """Without elements."""
    from . import sparse_compressed_tensor

    options = {"dtype": dtype or x.dtype, "device": device or x.device}
    if isinstance(x, CooTensor):
        index = x._index.new_zeros((x._index.size(0), 0), device=options["device"])
        values = warptape.zeros(0, *x._value.shape[1:], **options)
        return CooTensor.make(index, values, x.shape, True)
    ends = warptape.zeros(x._ptr.size(0), dtype=x._ptr.dtype, device=options["device"])
    values = warptape.zeros(0, *x._value.shape[1:], **options)
    return sparse_compressed_tensor(ends, ends[:0], values, x.shape, layout=x.layout)


# ---- places ----


@form("transpose", "swapaxes", "swapdims")
def transpose(x: Any, dim0: int, dim1: int) -> Any:
    """Two sparse dims swapped; a matrix by compressed rows becomes one by compressed columns."""
    a, b = _dim(dim0, x.ndim), _dim(dim1, x.ndim)
    if isinstance(x, CooTensor):
        order = list(range(x.ndim))
        order[a], order[b] = order[b], order[a]
        return permute(x, order)
    if a == b:
        return x
    if max(a, b) > 1:
        raise _refuse("transpose of dense dims", x)
    size = (x.size(1), x.size(0), *x.shape[2:])
    return CompressedTensor.make(x._ptr, x._index, x._value, size, not x._by_rows)


@form("t", "numpy_T", "T", "mT")
def t(x: Any) -> Any:
    """The transpose of a matrix."""
    return transpose(x, 0, 1) if x.ndim > 1 else x


@form("permute")
def permute(x: Any, *dims: Any) -> CooTensor:
    """The sparse dims, and the dense dims, each in another order."""
    order = [_dim(d, x.ndim) for d in (dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)]
    x, sparse = _coo(x, "permute"), x.sparse_dim()
    if sorted(order[:sparse]) != list(range(sparse)):
        raise _refuse("permute of sparse among dense dims", x)
    values = x._value.permute(0, *(d - sparse + 1 for d in order[sparse:]))
    same = order[:sparse] == list(range(sparse))
    return CooTensor.make(
        x._index[order[:sparse]], values, tuple(x.shape[d] for d in order), same and x._coalesced
    )


@form("unsqueeze")
def unsqueeze(x: Any, dim: int) -> CooTensor:
    """With a dim of size 1 more: sparse within the sparse dims, else dense."""
    x, dim, sparse = _coo(x, "unsqueeze"), _dim(dim, x.ndim + 1), x.sparse_dim()
    size = (*x.shape[:dim], 1, *x.shape[dim:])
    if dim > sparse:
        return CooTensor.make(x._index, x._value.unsqueeze(dim - sparse + 1), size, x._coalesced)
    rows = [*x._index.unbind(0)]
    rows.insert(dim, x._index.new_zeros(x._index.size(1)))
    return CooTensor.make(_ops.stack(rows), x._value, size, x._coalesced)


@form("select")
def select(x: Any, dim: int, index: int) -> Any:
    """One place of a dim: sparse by coordinates, dense where no sparse dim is left."""
    x, dim = to_sparse(x), _dim(dim, x.ndim)
    if not -x.size(dim) <= index < x.size(dim):
        raise IndexError(f"select(): index {index} out of range for tensor of size {tuple(x.shape)} at dimension {dim}")
    index, size, sparse = index % x.size(dim), (*x.shape[:dim], *x.shape[dim + 1 :]), x.sparse_dim()
    if dim >= sparse:
        return CooTensor.make(x._index, x._value.select(dim - sparse + 1, index), size, x._coalesced)
    here = x._index[dim] == index
    rest = [d for d in range(sparse) if d != dim]
    if not rest:
        return x._value[here].sum(0)
    return CooTensor.make(x._index[rest][:, here], x._value[here], size, x._coalesced)


@form("__getitem__")
def getitem(x: Any, key: Any) -> Any:
    """x[i], x[i, j] with numbers."""
    keys = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(k, int) and not isinstance(k, bool) for k in keys):
        raise _refuse("indexing by other than numbers", x)
    for k in keys:
        x = select(x, 0, k) if isinstance(x, SparseTensor) else x[k]
    return x


@form("index_select")
def index_select(x: Any, dim: int, index: Tensor) -> CooTensor:
    """Places of a dim in the order of `index`, which may name one twice."""
    x, dim, sparse = _coo(x, "index_select"), _dim(dim, x.ndim), x.sparse_dim()
    size = (*x.shape[:dim], index.numel(), *x.shape[dim + 1 :])
    if dim >= sparse:
        return CooTensor.make(x._index, x._value.index_select(dim - sparse + 1, index), size, x._coalesced)
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < x.size(dim):
        raise IndexError(f"index_select(): index out of range for dim {dim} of size {x.size(dim)}")
    # The places by the dim's value, then those of each wanted value.
    order = x._index[dim].argsort(stable=True)
    starts = _ops._convert_indices_from_coo_to_csr(x._index[dim][order], x.size(dim))
    counts = (starts[1:] - starts[:-1])[index]
    new = warptape.repeat_interleave(counts)
    before = (counts.cumsum(0) - counts)[new]
    old = order[starts[index][new] + warptape.arange(new.size(0), device=new.device) - before]
    rows = [new if d == dim else row[old] for d, row in enumerate(x._index.unbind(0))]
    return CooTensor.make(_ops.stack(rows), x._value.index_select(0, old), size, False)


@form("narrow_copy", "narrow")
def narrow(x: Any, dim: int, start: int, length: int) -> CooTensor:
    """Places start .. start + length of a sparse dim: a copy."""
    x, dim = _coo(x, "narrow"), _dim(dim, x.ndim)
    if dim >= x.sparse_dim():
        raise _refuse("narrow of a dense dim", x)
    start = start + x.size(dim) if start < 0 else start
    if length < 0 or not 0 <= start <= x.size(dim) - length:
        raise _C.ShapeError(f"narrow: {start} + {length} exceeds dimension size {x.size(dim)}")
    here = (x._index[dim] >= start) & (x._index[dim] < start + length)
    rows = [row[here] - (start if d == dim else 0) for d, row in enumerate(x._index.unbind(0))]
    size = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return CooTensor.make(_ops.stack(rows), x._value[here], size, x._coalesced)


@form("cat", "concat", "concatenate")
def cat(tensors: Any, dim: int = 0) -> CooTensor:
    """Along a dim, all by coordinates."""
    parts = [_coo(x, "cat") for x in tensors]
    dim, sparse, first = _dim(dim, parts[0].ndim), parts[0].sparse_dim(), parts[0]
    rest = [p.shape[:dim] + p.shape[dim + 1 :] for p in parts]
    if any(r != rest[0] or p.sparse_dim() != sparse for r, p in zip(rest, parts)):
        raise _C.ShapeError(f"cat: expected sizes alike but for dim {dim}, got {[tuple(p.shape) for p in parts]}")
    if dim >= sparse:
        raise _refuse("cat along a dense dim", first)
    rows, past = [], 0
    for p in parts:
        shift = p._index.new_zeros((sparse, 1))
        shift[dim] = past
        rows.append(p._index + shift)
        past += p.size(dim)
    size = (*first.shape[:dim], past, *first.shape[dim + 1 :])
    whole = dim == 0 and all(p._coalesced for p in parts)
    return CooTensor.make(_ops.cat(rows, 1), _ops.cat([p._value for p in parts]), size, whole)


@form("stack")
def stack(tensors: Any, dim: int = 0) -> CooTensor:
    """Along a new sparse dim."""
    return cat([unsqueeze(_coo(x, "stack"), dim) for x in tensors], dim)


# ---- reductions ----


@form("sum")
def sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The sum of all elements, a dense tensor; along dims it is sparse while a sparse dim is left."""
    if dtype is not None:
        x = to(x, dtype)
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return x._value.sum()
    dims = {_dim(d, x.ndim) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))}
    if isinstance(x, CompressedTensor) and not keepdim:
        raise RuntimeError("reduction operations on CSR tensors with keepdim=False is unsupported")
    found = _sum_along(to_sparse(x), dims, keepdim)
    return found if isinstance(x, CooTensor) else to_sparse(found, layout=x.layout)


def _sum_along(x: CooTensor, dims: set[int], keepdim: bool) -> Any:
    sparse = x.sparse_dim()
    values = x._value
    if dense := [d - sparse + 1 for d in dims if d >= sparse]:
        values = values.sum(dense, keepdim)
    left = [d for d in range(sparse) if d not in dims]
    size = tuple(1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims)
    if not left:
        return values.sum(0) if not keepdim else values.sum(0).reshape(size)
    if keepdim:
        index = x._index * warptape.tensor([[int(d not in dims)] for d in range(sparse)])
    else:
        index = x._index[left]
    kept = len(left) == sparse and x._coalesced
    found = CooTensor.make(index, values, size, kept)
    return found if kept else found.coalesce()


@form("norm")
def norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The norm of all elements."""
    if dim is not None:
        raise _refuse("norm along a dim", x)
    x = x.coalesce() if isinstance(x, CooTensor) else x
    return warptape.norm(x._value.flatten(), "fro" if p is None else p, dtype=dtype)


FORMS["any"] = lambda x: x._value.any()
FORMS["isfinite"] = lambda x: warptape.ones(x.shape, dtype=warptape.bool) & ~to_dense(~x._value.isfinite())


def softmax(x: CooTensor, dim: int, log: bool) -> CooTensor:
    """Over the elements that are there along a dim; those that are not count as -inf."""
    x, dim = _coo(x, "softmax").coalesce(), _dim(dim, x.ndim)
    sparse = x.sparse_dim()
    if dim >= sparse:
        call = _C._nn.log_softmax if log else _C._nn.softmax
        return x._like(call(x._value, dim - sparse + 1))
    from ._tensor import flat_index

    others = [d for d in range(sparse) if d != dim]
    flat = flat_index(x._index[others], tuple(x.shape[d] for d in others))
    found, group = warptape.unique(flat, return_inverse=True)
    none = x._value.new_zeros((found.size(0), *x._value.shape[1:]))
    spread = group.reshape(-1, *(1,) * (x._value.ndim - 1)).expand_as(x._value)
    most = none.scatter_reduce(0, spread, x._value.detach(), "amax", include_self=False)
    shifted = x._value - most[group]
    powers = shifted.exp()
    total = none.index_add(0, group, powers)[group]
    return x._like(shifted - total.log() if log else powers / total)


@form("sparse_mask")
def sparse_mask(x: Any, mask: Any) -> Any:
    """x's elements at mask's places."""
    if not isinstance(mask, SparseTensor) or x.shape != mask.shape:
        raise _refuse("sparse_mask of another size or by a dense mask", x, mask)
    if isinstance(x, SparseTensor):
        places = to_sparse(mask).coalesce()
        ones = CooTensor.make(places._index, warptape.ones_like(places._value, dtype=x.dtype), mask.shape, True)
        return mul(ones, to_sparse(x))
    places = tuple(mask._index.unbind(0)) if isinstance(mask, CooTensor) else coordinates(mask)
    return mask._like(x[places])
