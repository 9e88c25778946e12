"""Sparse tensors by coordinates and by compressed rows or columns, as far as graph networks use them.

Made, converted, multiplied, added, reduced, saved; gradients go to the values and to dense operands. The
gradient of a sparse tensor has that tensor's places, also where PyTorch makes a dense one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from ... import _C
from ...core import Tensor, as_tensor
from . import _arithmetic, _functions
from ._tensor import CompressedTensor, CooTensor, SparseTensor, by_rows

__all__ = [
    "SparseTensor",
    "addmm",
    "check_sparse_tensor_invariants",
    "log_softmax",
    "mm",
    "sampled_addmm",
    "softmax",
    "sparse_compressed_tensor",
    "sparse_coo_tensor",
    "sparse_csc_tensor",
    "sparse_csr_tensor",
    "spdiags",
    "sum",
]


def _values(values: Any, dtype: wt.dtype | None, device: Any, requires_grad: bool) -> Tensor:
    """The tensor of values, which a new sparse tensor has under a name of its own."""
    value = as_tensor(values, dtype=dtype, device=device)
    if requires_grad:
        return value.detach().requires_grad_()
    return value.view_as(value) if value.requires_grad else value


def sparse_coo_tensor(
    indices: Any = None,
    values: Any = None,
    size: Sequence[int] | None = None,
    *,
    dtype: wt.dtype | None = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> CooTensor:
    """A sparse tensor of `values` (n, ..) at `indices` (sparse dims, n), of the smallest size by default.

    With a size alone, one without elements.

    Raises:
        RuntimeError: sizes that do not fit, or an index outside of them.
    """
    if values is None:
        size = indices if size is None else size
        indices = wt.zeros(len(size), 0, dtype=_C.int64)
        values = wt.zeros(0, dtype=dtype, device=device)
        is_coalesced = True
    value = _values(values, dtype, device, requires_grad)
    index = as_tensor(indices, device=value.device).to(_C.int64)
    if index.ndim == 1 and value.ndim == 0:
        index, value = index[:, None], value[None]
    if index.ndim != 2 or value.ndim < 1 or value.size(0) != index.size(1):
        raise RuntimeError(
            "sparse_coo_tensor: expected indices of (sparse dims, n) and n values, got "
            f"{tuple(index.shape)} and {tuple(value.shape)}"
        )
    shape = _checked_size(index, value, size)
    return CooTensor.make(index, value, shape, bool(is_coalesced))


def _checked_size(index: Tensor, value: Tensor, size: Sequence[int] | None) -> tuple[int, ...]:
    most = [-1] * index.size(0)
    if index.numel():
        most = index.amax(1).tolist()
        if int(index.min()) < 0:
            raise RuntimeError(f"found negative index {int(index.min())}")
    shape = tuple(size) if size is not None else (*(m + 1 for m in most), *value.shape[1:])
    dense = tuple(value.shape[1:])
    if len(shape) != index.size(0) + len(dense) or tuple(shape[index.size(0) :]) != dense:
        raise RuntimeError(f"sparse_coo_tensor: expected a size of {index.size(0)} sparse dims, got {shape}")
    for dim, (found, limit) in enumerate(zip(most, shape)):
        if found >= limit:
            raise RuntimeError(
                f"size is inconsistent with indices: for dim {dim}, size is {limit} but found index {found}"
            )
    return shape


def sparse_compressed_tensor(
    compressed_indices: Any,
    plain_indices: Any,
    values: Any,
    size: Sequence[int] | None = None,
    *,
    dtype: wt.dtype | None = None,
    layout: wt.layout | None = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> CompressedTensor:
    """A sparse matrix by compressed rows (layout torch.sparse_csr) or columns (torch.sparse_csc).

    Raises:
        RuntimeError: indices that do not fit together, or the size.
        NotImplementedError: another layout, or a batch of matrices.
    """
    if layout not in (wt.sparse_csr, wt.sparse_csc):
        raise NotImplementedError(f"sparse_compressed_tensor: there is no layout {layout} here")
    rows = layout == wt.sparse_csr
    value = _values(values, dtype, device, requires_grad)
    ptr = as_tensor(compressed_indices, device=value.device)
    index = as_tensor(plain_indices, device=value.device)
    if ptr.ndim != 1:
        raise NotImplementedError("sparse_compressed_tensor: there are no batches of matrices here")
    if index.ndim != 1 or value.ndim < 1 or value.size(0) != index.size(0) or ptr.numel() == 0:
        raise RuntimeError(
            "sparse_compressed_tensor: expected compressed indices [lines + 1], and plain indices and values "
            f"of one length, got {tuple(ptr.shape)}, {tuple(index.shape)} and {tuple(value.shape)}"
        )
    most = int(index.max()) + 1 if index.numel() else 0
    if size is None:
        size = (ptr.numel() - 1, most) if rows else (most, ptr.numel() - 1)
        size = (*size, *value.shape[1:])
    lines, across = (size[0], size[1]) if rows else (size[1], size[0])
    if lines + 1 != ptr.numel() or tuple(size[2:]) != tuple(value.shape[1:]):
        raise RuntimeError(
            f"sparse_compressed_tensor: expected {lines + 1} compressed indices for size {tuple(size)} in "
            f"layout {layout}, got {ptr.numel()}"
        )
    _check_compressed(ptr, index, across, most, rows)
    return CompressedTensor.make(ptr, index, value, size, rows)


def _check_compressed(ptr: Tensor, index: Tensor, across: int, most: int, rows: bool) -> None:
    """RuntimeError where ptr [lines + 1] and index [n], at most `most`, are no lines of `across`."""
    names = ("crow_indices", "col_indices", "ncols") if rows else ("ccol_indices", "row_indices", "nrows")
    steps = ptr[1:] - ptr[:-1]
    unmet = ""
    if int(ptr[0]) != 0:
        unmet = f"`{names[0]}[..., 0] == 0`"
    elif int(ptr[-1]) != index.numel():
        unmet = f"`{names[0]}[..., -1] == nnz`"
    elif steps.numel() and int(steps.min()) < 0:
        unmet = f"`0 <= {names[0]}[..., 1:] - {names[0]}[..., :-1] <= {names[2]}`"
    elif index.numel() and (int(index.min()) < 0 or most > across):
        unmet = f"`0 <= {names[1]} < {names[2]}`"
    if unmet:
        raise RuntimeError(f"sparse_compressed_tensor: {unmet} is not satisfied.")


def sparse_csr_tensor(
    crow_indices: Any, col_indices: Any, values: Any, size: Sequence[int] | None = None, **options: Any
) -> CompressedTensor:
    """A sparse matrix by compressed rows: the options are those of sparse_compressed_tensor.

    Args:
        crow_indices: [rows + 1], where each row begins.
        col_indices: of the elements.
        values: of the elements.
        size: as small as the indices allow if None.
        **options: dtype, device, requires_grad.

    >>> torch.sparse_csr_tensor([0, 1, 2], [1, 0], [5.0, 6.0]).to_dense()
    tensor([[0., 5.],
            [6., 0.]])
    """
    options.pop("layout", None)
    return sparse_compressed_tensor(crow_indices, col_indices, values, size, layout=wt.sparse_csr, **options)


def sparse_csc_tensor(
    ccol_indices: Any, row_indices: Any, values: Any, size: Sequence[int] | None = None, **options: Any
) -> CompressedTensor:
    """A sparse matrix by compressed columns: the options are those of sparse_compressed_tensor.

    Args:
        ccol_indices: [columns + 1], where each column begins.
        row_indices: of the elements.
        values: of the elements.
        size: as small as the indices allow if None.
        **options: dtype, device, requires_grad.
    """
    options.pop("layout", None)
    return sparse_compressed_tensor(ccol_indices, row_indices, values, size, layout=wt.sparse_csc, **options)


def _legacy(dtype: wt.dtype) -> Any:
    def make(indices: Any, values: Any, size: Sequence[int] | None = None) -> CooTensor:
        """A sparse tensor of one dtype, as older programs make it."""
        return sparse_coo_tensor(indices, values, size, dtype=dtype)

    return make


FloatTensor, DoubleTensor, LongTensor = _legacy(_C.float32), _legacy(_C.float64), _legacy(_C.int64)


def mm(mat1: Tensor, mat2: Tensor, reduce: str | None = None) -> Any:
    """A sparse matrix (m, k) times a matrix (k, n), which is sparse where both are.

    With `reduce` one of "sum", "mean", "amax", "amin" of the products of each row, for compressed rows.

    Raises:
        ShapeError: sizes that do not fit.
    """
    if reduce is None or (reduce == "sum" and isinstance(mat1, SparseTensor)):
        return wt.matmul(mat1, mat2)
    if not isinstance(mat1, CompressedTensor) or isinstance(mat2, SparseTensor):
        raise NotImplementedError(
            "sparse.mm: reduce is there for a matrix in layout torch.sparse_csr times a dense one"
        )
    return _arithmetic.mm_dense(mat1, mat2, reduce)


def addmm(mat: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Any:
    """beta * mat + alpha * (mat1 @ mat2), mat1 sparse.

    Args:
        mat: dense or sparse.
        mat1: sparse.
        mat2: dense or sparse.
        beta, alpha: factors.
    """
    return _arithmetic.addmm(mat, mat1, mat2, beta=beta, alpha=alpha)


def sampled_addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Any:
    """beta * input + alpha * (mat1 @ mat2) at the places of input, a matrix in layout torch.sparse_csr.

    Args:
        input: says at which places.
        mat1, mat2: dense.
        beta, alpha: factors.

    Raises: NotImplementedError for another layout.
    """
    if not isinstance(input, CompressedTensor) or not input._by_rows:
        raise NotImplementedError("sparse.sampled_addmm: expected input in layout torch.sparse_csr")
    crow, col, values = by_rows(input)
    return input._like(beta * values + alpha * _C._private._csr_sample(crow, col, mat1, mat2.t()))


def sum(input: Tensor, dim: int | Sequence[int] | None = None, dtype: wt.dtype | None = None) -> Any:
    """The sum of all elements, a dense tensor; along dims it is sparse while a sparse dim is left.

    Args:
        input: sparse.
        dim: one or several; None for all.
        dtype: of the sum.
    """
    return _functions.sum(input, dim, dtype=dtype)


def softmax(input: Any, dim: int, *, dtype: wt.dtype | None = None) -> CooTensor:
    """softmax over the elements that are there along a dim; those that are not count as -inf.

    Args:
        input: sparse, by coordinates.
        dim: along which.
        dtype: of the result.
    """
    return _functions.softmax(input if dtype is None else input.to(dtype), dim, False)


def log_softmax(input: Any, dim: int, *, dtype: wt.dtype | None = None) -> CooTensor:
    """The logarithm of softmax.

    Args:
        input: sparse, by coordinates.
        dim: along which.
        dtype: of the result.
    """
    return _functions.softmax(input if dtype is None else input.to(dtype), dim, True)


def spdiags(diagonals: Tensor, offsets: Tensor, shape: Sequence[int], layout: wt.layout | None = None) -> Any:
    """A matrix with these diagonals [n, length]; element j of one goes to column j, `offsets` says which.

    Args:
        diagonals: one in each row.
        offsets: [n], above the main diagonal if positive.
        shape: of the matrix.
        layout: by coordinates if None.

    Raises: ValueError unless there is a different offset for each diagonal.
    """
    offsets = offsets.reshape(-1)
    rows = diagonals.reshape(-1, diagonals.size(-1))
    if offsets.numel() != rows.size(0) or offsets.unique().numel() != offsets.numel():
        raise ValueError(f"spdiags: expected {rows.size(0)} different offsets, got {offsets.tolist()}")
    column = wt.arange(rows.size(1)).expand(rows.shape)
    row = column - offsets[:, None]
    here = (row >= 0) & (row < shape[0]) & (column < shape[1])
    result = sparse_coo_tensor(wt.stack([row[here], column[here]]), rows[here], tuple(shape))
    return result if layout is None else result.coalesce().to_sparse(layout=layout)


class check_sparse_tensor_invariants:
    """Context manager, and switch; indices are always checked here.

    Args:
        enable: without effect.
    """

    def __init__(self, enable: bool = True) -> None:
        self.enabled = enable

    @staticmethod
    def is_enabled() -> bool:
        """Whether indices are checked: True, always."""
        return True

    @staticmethod
    def enable() -> None:
        """Without effect."""

    @staticmethod
    def disable() -> None:
        """Without effect."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: Any) -> None:
        pass


def of_dense(x: Tensor, sparse_dim: int | None = None, layout: wt.layout | None = None) -> Any:
    """The elements of a dense tensor that are not zero (rows of them, with fewer sparse dims than x has).

    Args:
        x: dense.
        sparse_dim: None for all.
        layout: by coordinates if None.
    """
    sparse = x.ndim if sparse_dim is None else sparse_dim
    if not min(1, x.ndim) <= sparse <= x.ndim:
        raise RuntimeError(f"to_sparse: expected 1 to {x.ndim} sparse dims, got {sparse}")
    there = x.detach() != 0
    if sparse < x.ndim:
        there = there.flatten(sparse).any(-1)
    index = wt.nonzero(there).t()
    result = CooTensor.make(index, x[tuple(index.unbind(0))], x.shape, True)
    return result if layout in (None, wt.sparse_coo) else result.to_sparse(layout=layout)
