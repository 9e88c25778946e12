"""Sparse matrices by coordinates, as far as graph networks use them: made, multiplied, added, made dense.

A `SparseTensor` is not a Tensor: it has two, the indices and the values, and what it offers is composed of
their ops, gradients included.
"""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import warptape

from . import _C
from ._functions import as_tensor
from ._missing import lookup as _lookup
from ._tensor import Tensor

__all__ = ["SparseTensor", "mm", "sparse_coo_tensor", "sum"]

_ops = _C._functions


class SparseTensor:
    """What sparse_coo_tensor and Tensor.to_sparse make.

    `indices` is (sparse dims, n) and `values` (n, dense dims); elements that are named twice are added.
    """

    is_sparse = True
    layout = "torch.sparse_coo"

    def __init__(self, indices: Tensor, values: Tensor, size: tuple[int, ...], coalesced: bool) -> None:
        self._index, self._value, self._coalesced = indices, values, coalesced
        self.shape = _C.Size(size)

    dtype = property(lambda self: self._value.dtype, doc="The dtype of the values.")
    device = property(lambda self: self._value.device, doc="Where indices and values are.")
    requires_grad = property(
        lambda self: self._value.requires_grad, doc="Whether the values ask for gradients."
    )
    ndim = property(lambda self: len(self.shape), doc="How many dims there are.")

    def __repr__(self) -> str:
        parts = f"indices={self._index!r}, values={self._value!r}, size={tuple(self.shape)}"
        return f"tensor({parts}, nnz={self._nnz()}, layout={self.layout})"

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one dim of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """How many dims there are."""
        return len(self.shape)

    def _nnz(self) -> int:
        return self._value.size(0)

    def _indices(self) -> Tensor:
        return self._index

    def _values(self) -> Tensor:
        return self._value

    def is_coalesced(self) -> bool:
        """Whether no element is named twice, and all are in order."""
        return self._coalesced

    def indices(self) -> Tensor:
        """Where the values are: (sparse dims, n). RuntimeError before coalesce()."""
        self._check_coalesced("indices")
        return self._index

    def values(self) -> Tensor:
        """The values. RuntimeError before coalesce()."""
        self._check_coalesced("values")
        return self._value

    def _check_coalesced(self, what: str) -> None:
        if not self._coalesced:
            raise RuntimeError(f"Cannot get {what} on an uncoalesced tensor, please call .coalesce() first")

    def coalesce(self) -> SparseTensor:
        """The same matrix with every element named once, in order."""
        if self._coalesced:
            return self
        flat, place = self._index[0] * 0, 1
        for row, size in zip(reversed(self._index.unbind(0)), reversed(self.shape[: self._index.size(0)])):
            flat, place = flat + row * place, place * size
        found, inverse = warptape.unique(flat, return_inverse=True)
        values = self._value.new_zeros((found.size(0), *self._value.shape[1:])).index_add(
            0, inverse, self._value
        )
        rows = []
        for size in reversed(self.shape[: self._index.size(0)]):
            rows.append(found % size)
            found = found // size
        return SparseTensor(_ops.stack(rows[::-1]), values, self.shape, True)

    def to_dense(self) -> Tensor:
        """A Tensor of the same elements."""
        return self._value.new_zeros(self.shape).index_put(tuple(self._index.unbind(0)), self._value, True)

    def to_sparse(self) -> SparseTensor:
        """Itself."""
        return self

    def _with(self, values: Tensor, indices: Tensor | None = None) -> SparseTensor:
        return SparseTensor(self._index if indices is None else indices, values, self.shape, self._coalesced)

    def to(self, *args: Any, **kwargs: Any) -> SparseTensor:
        """With the values in another dtype, or both on another device: as Tensor.to."""
        values = self._value.to(*args, **kwargs)
        return self._with(values, self._index.to(values.device))

    def cuda(self, device: Any = None) -> SparseTensor:
        """On a GPU."""
        return self.to("cuda" if device is None else device)

    cpu = partialmethod(to, "cpu")
    float = partialmethod(to, _C.float32)
    double = partialmethod(to, _C.float64)

    def is_floating_point(self) -> bool:
        """Whether the values are of a floating dtype."""
        return self._value.is_floating_point()

    def is_complex(self) -> bool:
        """Whether the values are complex."""
        return self._value.is_complex()

    def detach(self) -> SparseTensor:
        """Without history."""
        return self._with(self._value.detach())

    def transpose(self, dim0: int, dim1: int) -> SparseTensor:
        """With two of the sparse dims swapped."""
        order = list(range(len(self.shape)))
        order[dim0], order[dim1] = order[dim1], order[dim0]
        rows = [self._index[d] for d in order[: self._index.size(0)]]
        return SparseTensor(_ops.stack(rows), self._value, tuple(self.shape[d] for d in order), False)

    def t(self) -> SparseTensor:
        """The transpose of a matrix."""
        return self.transpose(0, 1)

    def __matmul__(self, other: Any) -> Tensor:
        return mm(self, other)

    def __rmatmul__(self, other: Tensor) -> Tensor:
        return mm(self.t(), other.t()).t()

    def matmul(self, other: Any) -> Tensor:
        """This matrix times a matrix or a vector."""
        return mm(self, other)

    mm = matmul

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, SparseTensor):
            return self.to_dense() + other
        if self.shape != other.shape:
            raise _C.ShapeError(f"add: expected two sizes alike, got {self.shape} and {other.shape}")
        values = _ops.cat([self._value, other._value])
        return SparseTensor(_ops.cat([self._index, other._index], 1), values, self.shape, False)

    __radd__ = __add__

    def __mul__(self, other: Any) -> SparseTensor:
        if isinstance(other, SparseTensor) or (isinstance(other, Tensor) and other.ndim):
            return NotImplemented
        return self._with(self._value * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> SparseTensor:
        return self._with(self._value / other)

    def sum(self, dim: Any = None) -> Tensor:
        """The sum of all elements, or along dims: a Tensor."""
        return self._value.sum() if dim is None else self.to_dense().sum(dim)


def sparse_coo_tensor(
    indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> SparseTensor:
    """A sparse tensor of `values` (n, ..) at `indices` (sparse dims, n), of the smallest size by default.

    Raises:
        RuntimeError: sizes that do not fit, or an index outside of them.
    """
    index = as_tensor(indices, device=device).to(_C.int64)
    value = as_tensor(values, dtype=dtype, device=device)
    if index.ndim != 2 or value.ndim < 1 or value.size(0) != index.size(1):
        raise RuntimeError(
            "sparse_coo_tensor: expected indices of (sparse dims, n) and n values, got "
            f"{tuple(index.shape)} and {tuple(value.shape)}"
        )
    most = [int(row.max()) if row.numel() else -1 for row in index.unbind(0)]
    shape = tuple(size) if size is not None else (*(m + 1 for m in most), *value.shape[1:])
    if len(shape) != index.size(0) + value.ndim - 1 or tuple(shape[index.size(0) :]) != tuple(
        value.shape[1:]
    ):
        raise RuntimeError(f"sparse_coo_tensor: expected a size of {index.size(0)} sparse dims, got {shape}")
    for dim, (found, limit) in enumerate(zip(most, shape)):
        if found >= limit:
            raise RuntimeError(
                f"size is inconsistent with indices: for dim {dim}, size is {limit} but found index {found}"
            )
    if index.numel() and int(index.min()) < 0:
        raise RuntimeError(f"found negative index {int(index.min())}")
    if requires_grad:
        value = value.detach().requires_grad_()
    return SparseTensor(index, value, shape, bool(is_coalesced))


def FloatTensor(indices: Any, values: Any, size: Any = None) -> SparseTensor:
    """A sparse tensor of float32, as older programs make it."""
    return sparse_coo_tensor(indices, values, size, dtype=_C.float32)


def mm(mat1: Any, mat2: Tensor) -> Tensor:
    """A sparse matrix (m, k) times a matrix (k, n) or a vector (k): a Tensor.

    Raises:
        ShapeError: sizes that do not fit.
    """
    if not isinstance(mat1, SparseTensor):
        return _ops.matmul(mat1, mat2.to_dense() if isinstance(mat2, SparseTensor) else mat2)
    other = mat2.to_dense() if isinstance(mat2, SparseTensor) else mat2
    if len(mat1.shape) != 2 or other.ndim not in (1, 2) or mat1.shape[1] != other.size(0):
        raise _C.ShapeError(
            f"mm: expected (m, k) and (k, n), got {tuple(mat1.shape)} and {tuple(other.shape)}"
        )
    values = mat1._value if other.ndim == 1 else mat1._value[:, None]
    parts = values * other.index_select(0, mat1._index[1])
    return parts.new_zeros((mat1.shape[0], *other.shape[1:])).index_add(0, mat1._index[0], parts)


def sum(input: SparseTensor, dim: Any = None, dtype: Any = None) -> Tensor:
    """The sum of all elements, or along dims: a Tensor."""
    return (input if dtype is None else input.to(dtype)).sum(dim)


def to_sparse(self: Tensor) -> SparseTensor:
    """The elements that are not zero, by coordinates."""
    index = warptape.nonzero(self).t()
    return SparseTensor(index, self[tuple(index.unbind(0))], self.shape, True)


__getattr__ = _lookup(__name__)
