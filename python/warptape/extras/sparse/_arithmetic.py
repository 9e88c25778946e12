"""What products and arithmetic do with sparse tensors."""

from __future__ import annotations

from typing import Any

from warptape import core as wt

from ... import _C
from ...core import Tensor
from ._functions import as_coo, handles, refuse, to_dense, to_sparse, to_sparse_csr, transpose
from ._tensor import CooTensor, SparseTensor, by_rows, coordinates, flat_index

_ops: Any = _C._functions


# ---- products ----


def _check_product(x: Any, other: Tensor) -> None:
    if x.ndim != 2 or other.ndim not in (1, 2) or x.size(1) != other.size(0):
        raise _C.ShapeError(f"mm: expected (m, k) and (k, n), got {tuple(x.shape)} and {tuple(other.shape)}")
    if x._value.ndim != 1:
        raise refuse("mm", x, other)


def mm_dense(x: Tensor, dense: Tensor, reduce: str = "sum") -> Tensor:
    """A sparse matrix (m, k) times a matrix (k, n) or a vector (k)."""
    _check_product(x, dense)
    if x.dtype != dense.dtype:
        raise _C.DtypeError(f"expected m1 and m2 to have the same dtype, but got: {x.dtype} != {dense.dtype}")
    flat = dense if dense.ndim == 2 else dense.unsqueeze(1)
    product = _C._private._csr_matmul(*by_rows(x), flat, reduce)
    return product if dense.ndim == 2 else product.squeeze(1)


def mm_sparse(x: Any, other: Tensor) -> Any:
    """A sparse matrix times another: every element of x meets those of a row of other."""
    _check_product(x, other)
    crow, col, values = by_rows(other)
    rows, columns = coordinates(x)
    counts = (crow[1:] - crow[:-1]).index_select(0, columns)
    mine = wt.repeat_interleave(counts)  # of each product, the element of x
    before = (counts.cumsum(0) - counts).index_select(0, mine)
    place = wt.arange(mine.size(0), device=mine.device) - before
    other_at = crow.index_select(0, columns.index_select(0, mine)) + place
    index = _ops.stack([rows.index_select(0, mine), col.index_select(0, other_at).to(rows.dtype)])
    products = x._value.index_select(0, mine) * values.index_select(0, other_at)
    product = CooTensor.make(index.long(), products, (x.size(0), other.size(1)), False).coalesce()
    return product if isinstance(x, CooTensor) else to_sparse_csr(product)


@handles("mm matmul mv dsmm spmm __matmul__")
def matmul(x: Tensor, other: Tensor, *, out: Tensor | None = None) -> Any:
    """A sparse matrix times a matrix or a vector, the other way round, or both sparse."""
    if out is not None:
        raise refuse("matmul(out=)", x, other)
    if isinstance(x, SparseTensor):
        return mm_sparse(x, other) if isinstance(other, SparseTensor) else mm_dense(x, other)
    if x.ndim == 1:
        return mm_dense(transpose(other, 0, 1), x)
    if x.ndim > 2:
        return matmul(x.flatten(0, -2), other).unflatten(0, x.shape[:-1])
    return mm_dense(transpose(other, 0, 1), x.t()).t()


@handles("__rmatmul__")
def rmatmul(x: Tensor, other: Tensor) -> Any:
    """matmul(other, x)."""
    return matmul(other, x)


@handles("linear")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """nn.functional.linear with a sparse weight (or input)."""
    out = matmul(input, transpose(weight, 0, 1) if isinstance(weight, SparseTensor) else weight.t())
    return out if bias is None else out + bias


@handles("bmm")
def bmm(x: Tensor, other: Tensor) -> Tensor:
    """Sparse matrices [b, m, k], by coordinates, times dense [b, k, n]: as one matrix with blocks."""
    x = as_coo(x, "bmm")
    if x._index.size(0) != 3 or isinstance(other, SparseTensor):
        raise refuse("bmm", x, other)
    (b, m, k), index = x.shape, x._index
    if other.ndim != 3 or other.shape[:2] != (b, k):
        raise _C.ShapeError(f"bmm: expected (b, m, k) and (b, k, n), got {x.shape} and {other.shape}")
    both = _ops.stack([index[0] * m + index[1], index[0] * k + index[2]])
    blocks = CooTensor.make(both, x._value, (b * m, b * k), x._coalesced)
    return mm_dense(blocks, other.reshape(b * k, -1)).reshape(b, m, -1)


@handles("addmm")
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * input + alpha * (mat1 @ mat2)."""
    product = matmul(mat1, mat2)
    return (input if beta == 1 else input * beta) + (product if alpha == 1 else product * alpha)


# ---- arithmetic ----


@handles("add __add__ __radd__")
def add(x: Tensor, other: Tensor | float, *, alpha: Any = 1) -> Any:
    """x + alpha * other: sparse where both are."""
    if not isinstance(x, SparseTensor):
        if not isinstance(x, Tensor):
            raise refuse("add", other)
        return x + to_dense(other) * alpha
    if not isinstance(other, SparseTensor):
        if not isinstance(other, Tensor):
            raise refuse("add of a number", x)
        return to_dense(x) + other * alpha
    if x.shape != other.shape:
        raise _C.ShapeError(f"add: expected two sizes alike, got {x.shape} and {other.shape}")
    second: Any = other if alpha == 1 else mul(other, alpha)
    first: Any = x
    if first._index is second._index and x.layout == second.layout:
        return x._like(x._value + second._value)
    a, b = to_sparse(x), to_sparse(second)
    if a._index.size(0) != b._index.size(0):
        raise refuse("add of different sparse dims", x, other)
    values = _ops.cat([a._value, b._value])
    total = CooTensor.make(_ops.cat([a._index, b._index], 1), values, x.shape, False)
    if isinstance(x, CooTensor):
        return total.coalesce() if a._coalesced and b._coalesced else total
    return to_sparse(total, layout=x.layout)


@handles("sub subtract __sub__")
def sub(x: Tensor, other: Tensor | float, *, alpha: Any = 1) -> Any:
    """x - alpha * other."""
    return add(x, other, alpha=-alpha)


@handles("add_ __iadd__")
def _add_(x: Tensor, other: Tensor | float, *, alpha: Any = 1) -> Any:
    if not isinstance(x, SparseTensor):
        return x.add_(to_dense(other), alpha=alpha)
    return x._take(add(x, other, alpha=alpha))


handles("sub_ __isub__")(lambda x, other, *, alpha=1: _add_(x, other, alpha=-alpha))
handles("rsub __rsub__")(lambda x, other: add(-x, other))


def _scaled(op: str, x: Any, other: Tensor | float) -> Any:
    """x (sparse) times or divided by a number or a dense tensor, at x's places."""
    function = getattr(_ops, op)
    if not isinstance(other, Tensor) or other.ndim == 0:
        return x._like(function(x._value, other))
    if other.ndim > x.ndim:
        raise refuse(op, x, other)
    places = tuple(x._index.unbind(0)) if isinstance(x, CooTensor) else coordinates(x)
    at = other.broadcast_to(x.shape)[places]
    return x._like(function(x._value, at))


@handles("mul multiply __mul__ __rmul__")
def mul(x: Tensor, other: Tensor | float) -> Any:
    """Element by element: the result is sparse."""
    if not isinstance(x, SparseTensor):
        return mul(other, x)
    if not isinstance(other, SparseTensor):
        return _scaled("mul", x, other)
    if x.shape != other.shape:
        raise refuse("mul of different sizes", x, other)
    common = _common(to_sparse(x).coalesce(), to_sparse(other).coalesce())
    return common if isinstance(x, CooTensor) else to_sparse(common, layout=x.layout)


def _common(a: CooTensor, b: CooTensor) -> CooTensor:
    """The products at the places that both have."""
    sizes = tuple(a.shape[: a._index.size(0)])
    one, two = flat_index(a._index, sizes), flat_index(b._index, sizes)
    if two.numel() == 0:
        return CooTensor.make(a._index[:, :0], a._value[:0] * 1, a.shape, True)
    at = wt.searchsorted(two, one).clamp(max=two.numel() - 1)
    here = two[at] == one
    values = a._value[here] * b._value[at[here]]
    return CooTensor.make(a._index[:, here], values, a.shape, True)


@handles("div divide true_divide __truediv__")
def div(x: Tensor, other: Tensor | float) -> Any:
    """x (sparse) divided by a number or a dense tensor: the result is sparse."""
    if not isinstance(x, SparseTensor) or isinstance(other, SparseTensor):
        raise refuse("div", x, other)
    return _scaled("div", x, other)


handles("mul_ __imul__")(lambda x, other: _in_place("mul_", x, other))
handles("div_ __itruediv__")(lambda x, other: _in_place("div_", x, other))


def _in_place(op: str, x: Any, other: Tensor | float) -> Any:
    if not isinstance(x, SparseTensor) or isinstance(other, SparseTensor):
        raise refuse(op, x, other)
    if isinstance(other, Tensor) and other.ndim:
        return x._take(_scaled(op[:-1], x, other))
    getattr(x._value, op)(other)
    return x


@handles("sparse_mask")
def sparse_mask(x: Tensor, mask: Tensor) -> Any:
    """x's elements at mask's places."""
    if not isinstance(mask, SparseTensor) or x.shape != mask.shape:
        raise refuse("sparse_mask of another size or by a dense mask", x, mask)
    if isinstance(x, SparseTensor):
        places = to_sparse(mask).coalesce()
        ones = CooTensor.make(places._index, wt.ones_like(places._value, dtype=x.dtype), mask.shape, True)
        return mul(ones, to_sparse(x))
    places = tuple(mask._index.unbind(0)) if isinstance(mask, CooTensor) else coordinates(mask)
    return mask._like(x[places])
