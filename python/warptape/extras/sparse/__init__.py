"""Sparse tensors by coordinates and by compressed rows or columns, as far as graph networks use them.

Made, converted, multiplied, added, reduced, saved; gradients go to the values and to dense operands. The
gradient of a sparse tensor has that tensor's places, also where PyTorch makes a dense one.
"""

from __future__ import annotations

from typing import Any

import warptape

from ... import _C
from ..._functions import as_tensor
from ..._missing import install_getattr as _install_getattr
from ..._tensor import Tensor
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


def _values(values: Any, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    """The tensor of values, which a new sparse tensor has under a name of its own."""
    value = as_tensor(values, dtype=dtype, device=device)
    if requires_grad:
        return value.detach().requires_grad_()
    return value.view_as(value) if value.requires_grad else value


def sparse_coo_tensor(
    indices: Any = None,
    values: Any = None,
    size: Any = None,
    *,
    dtype: Any = None,
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
        indices = warptape.zeros(len(size), 0, dtype=_C.int64)
        values = warptape.zeros(0, dtype=dtype, device=device)
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


def _checked_size(index: Tensor, value: Tensor, size: Any) -> tuple[int, ...]:
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
    size: Any = None,
    *,
    dtype: Any = None,
    layout: Any = None,
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
    if layout not in (warptape.sparse_csr, warptape.sparse_csc):
        raise NotImplementedError(f"sparse_compressed_tensor: there is no layout {layout} here")
    rows = layout == warptape.sparse_csr
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
    crow_indices: Any, col_indices: Any, values: Any, size: Any = None, **options: Any
) -> CompressedTensor:
    """A sparse matrix by compressed rows: the options are those of sparse_compressed_tensor."""
    options.pop("layout", None)
    return sparse_compressed_tensor(
        crow_indices, col_indices, values, size, layout=warptape.sparse_csr, **options
    )


def sparse_csc_tensor(
    ccol_indices: Any, row_indices: Any, values: Any, size: Any = None, **options: Any
) -> CompressedTensor:
    """A sparse matrix by compressed columns: the options are those of sparse_compressed_tensor."""
    options.pop("layout", None)
    return sparse_compressed_tensor(
        ccol_indices, row_indices, values, size, layout=warptape.sparse_csc, **options
    )


def _legacy(dtype: Any) -> Any:
    def make(indices: Any, values: Any, size: Any = None) -> CooTensor:
        """A sparse tensor of one dtype, as older programs make it."""
        return sparse_coo_tensor(indices, values, size, dtype=dtype)

    return make


FloatTensor, DoubleTensor, LongTensor = _legacy(_C.float32), _legacy(_C.float64), _legacy(_C.int64)


def mm(mat1: Any, mat2: Any, reduce: str | None = None) -> Any:
    """A sparse matrix (m, k) times a matrix (k, n), which is sparse where both are.

    With `reduce` one of "sum", "mean", "amax", "amin" of the products of each row, for compressed rows.

    Raises:
        ShapeError: sizes that do not fit.
    """
    if reduce is None or (reduce == "sum" and isinstance(mat1, SparseTensor)):
        return warptape.matmul(mat1, mat2)
    if not isinstance(mat1, CompressedTensor) or isinstance(mat2, SparseTensor):
        raise NotImplementedError(
            "sparse.mm: reduce is there for a matrix in layout torch.sparse_csr times a dense one"
        )
    return _arithmetic.mm_dense(mat1, mat2, reduce)


def addmm(mat: Any, mat1: Any, mat2: Any, *, beta: float = 1.0, alpha: float = 1.0) -> Any:
    """beta * mat + alpha * (mat1 @ mat2), mat1 sparse."""
    return _arithmetic.addmm(mat, mat1, mat2, beta=beta, alpha=alpha)


def sampled_addmm(input: Any, mat1: Tensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Any:
    """beta * input + alpha * (mat1 @ mat2) at the places of input, a matrix in layout torch.sparse_csr."""
    if not isinstance(input, CompressedTensor) or not input._by_rows:
        raise NotImplementedError("sparse.sampled_addmm: expected input in layout torch.sparse_csr")
    crow, col, values = by_rows(input)
    return input._like(beta * values + alpha * _C._private._csr_sample(crow, col, mat1, mat2.t()))


def sum(input: Any, dim: Any = None, dtype: Any = None) -> Any:
    """The sum of all elements, a dense tensor; along dims it is sparse while a sparse dim is left."""
    return _functions.sum(input, dim, dtype=dtype)


def softmax(input: Any, dim: int, *, dtype: Any = None) -> CooTensor:
    """softmax over the elements that are there along a dim; those that are not count as -inf."""
    return _functions.softmax(input if dtype is None else input.to(dtype), dim, False)


def log_softmax(input: Any, dim: int, *, dtype: Any = None) -> CooTensor:
    """The logarithm of softmax."""
    return _functions.softmax(input if dtype is None else input.to(dtype), dim, True)


def spdiags(diagonals: Tensor, offsets: Tensor, shape: Any, layout: Any = None) -> Any:
    """A matrix with these diagonals [n, length]; element j of one goes to column j, `offsets` says which."""
    offsets = offsets.reshape(-1)
    rows = diagonals.reshape(-1, diagonals.size(-1))
    if offsets.numel() != rows.size(0) or offsets.unique().numel() != offsets.numel():
        raise ValueError(f"spdiags: expected {rows.size(0)} different offsets, got {offsets.tolist()}")
    column = warptape.arange(rows.size(1)).expand(rows.shape)
    row = column - offsets[:, None]
    here = (row >= 0) & (row < shape[0]) & (column < shape[1])
    made = sparse_coo_tensor(warptape.stack([row[here], column[here]]), rows[here], tuple(shape))
    return made if layout is None else made.coalesce().to_sparse(layout=layout)


class check_sparse_tensor_invariants:
    """Context manager, and switch; indices are always checked here."""

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


def of_dense(x: Tensor, sparse_dim: int | None = None, layout: Any = None) -> Any:
    """The elements of a dense tensor that are not zero (rows of them, with fewer sparse dims than x has)."""
    sparse = x.ndim if sparse_dim is None else sparse_dim
    if not min(1, x.ndim) <= sparse <= x.ndim:
        raise RuntimeError(f"to_sparse: expected 1 to {x.ndim} sparse dims, got {sparse}")
    there = x.detach() != 0
    if sparse < x.ndim:
        there = there.flatten(sparse).any(-1)
    index = warptape.nonzero(there).t()
    made = CooTensor.make(index, x[tuple(index.unbind(0))], x.shape, True)
    return made if layout in (None, warptape.sparse_coo) else made.to_sparse(layout=layout)


_install_getattr(__name__)
