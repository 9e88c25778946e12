"""The classes of sparse tensors.

A sparse tensor is an object of a subclass of Tensor that has no data itself: it holds a dense tensor of
values and those of their indices, and every op on it is looked up in HANDLERS (core/by_name.py). The
tape records what is done with the values. An op that is not there raises NotImplementedError; one that gets
past `__torch_function__` finds no data to read and raises too, so that nothing is computed wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

from warptape import core as wt

from ... import _C
from ...core import Tensor
from ...core.by_name import HandledTensor, Handlers
from ...core.protocols import TapedByValue

__all__ = ["CompressedTensor", "CooTensor", "SparseTensor"]

_ops: Any = _C._functions
HANDLERS = Handlers(again=True)  # `_functions` and `_arithmetic` fill it


class SparseTensor(TapedByValue, HandledTensor):
    """What all sparse tensors have: `_value` [n, dense dims], of the elements that are there."""

    handlers = HANDLERS
    _value: Tensor
    _found: dict[str, Any]
    is_mkldnn = is_nested = False

    @classmethod
    def _on(cls, like: Tensor, size: Sequence[int], found: dict[str, Any] | None = None, **parts: Any) -> Any:
        """An object of this size, with like's dtype and device; `found` is by_rows's."""
        bare = _C._private._stand_in(like, tuple(size))
        with _C.DisableTorchFunctionSubclass():
            tensor = Tensor._make_subclass(cls, bare)
        tensor.__dict__.update(parts, _found=found if found is not None else {})
        return tensor

    # ---- autograd: of the values ----

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether gradients are recorded."""
        return self._value.requires_grad

    @requires_grad.setter
    def requires_grad(self, on: bool) -> None:
        self._value.requires_grad = on

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        """The node of the op that made the values, or None."""
        return self._value.grad_fn

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        """True when no recorded op made the values."""
        return self._value.is_leaf

    @property
    def grad(self) -> Any:  # type: ignore[override]
        """The gradient of the elements that are there: a sparse tensor, or None."""
        return None if self._value.grad is None else self.taped_gradient(self._value.grad)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self._value.grad = None if value is None else value._value  # type: ignore[attr-defined]

    def _like(self, values: Tensor) -> Any:
        """Other values at the same places."""
        raise NotImplementedError

    def taped_value(self) -> Tensor:
        """The values."""
        return self._value

    def taped_gradient(self, gradient: Tensor) -> Any:
        """The gradient, of the values' gradients."""
        return self._like(gradient)

    def _take(self, other: SparseTensor) -> Any:
        """Becomes what `other` is, which has the same shape and dtype: in-place forms."""
        if self.requires_grad and self.is_leaf and _C.is_grad_enabled():
            raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
        self.__dict__.update(other.__dict__)
        return self

    def retain_grad(self) -> None:
        """Keeps the gradient of the values of a tensor that is not a leaf."""
        self._value.retain_grad()

    def register_hook(self, hook: Callable[..., Any]) -> Any:
        """Not available."""
        raise NotImplementedError("register_hook: there is none for sparse tensors; hook the values")

    register_post_accumulate_grad_hook = register_hook

    # ---- objects ----

    def __copy__(self) -> Any:
        return self._like(self._value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            copy = self.clone().detach()
            memo[id(self)] = copy.requires_grad_() if self.requires_grad else copy
        return memo[id(self)]

    # Tensor's own are written in Python and know dense tensors alone.
    def to_dense(self, dtype: wt.dtype | None = None, *, masked_grad: bool | None = None) -> Tensor:
        """A dense tensor of the same elements."""
        return _call("to_dense", self, dtype)

    def to_sparse(self, *args: Any, layout: wt.layout | None = None, **more: Any) -> Any:
        """In another sparse layout, by coordinates unless given."""
        return _call("to_sparse", self, layout=layout)

    def to_sparse_csr(self, dense_dim: int | None = None) -> Any:
        """By compressed rows."""
        return _call("to_sparse_csr", self)

    def to_sparse_csc(self, dense_dim: int | None = None) -> Any:
        """By compressed columns."""
        return _call("to_sparse_csc", self)

    def sparse_mask(self, mask: Tensor) -> Any:
        """The elements at the places of another sparse tensor of the same size."""
        return _call("sparse_mask", self, mask)

    T = mT = property(lambda self: _call("t", self), doc="The transpose.")

    def numpy(self, *, force: bool = False) -> Any:
        """Not available: TypeError."""
        raise TypeError(f"can't convert {self.layout} layout tensor to numpy. Use Tensor.to_dense() first.")

    def tolist(self) -> Any:
        """Not available: RuntimeError."""
        raise RuntimeError("tolist: a sparse tensor has no data of its own; use Tensor.to_dense() first")

    def untyped_storage(self) -> Any:
        """Not available: NotImplementedError."""
        raise NotImplementedError("Cannot access storage of a sparse tensor")

    storage = data_ptr = untyped_storage  # type: ignore[assignment]

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """In another dtype; without an argument, the name of the legacy type."""
        if dtype is None:
            return self._value.type().replace("torch.", "torch.sparse.", 1)
        return self._like(self._value.type(dtype))

    def _nnz(self) -> int:
        """How many elements are there."""
        return self._value.size(0)

    def _text(self, named: dict[str, Tensor]) -> str:
        """The repr, of the tensors of places and of the values."""
        from ...core.printing import sparse_text

        return sparse_text(self, named, self._value)


class CooTensor(SparseTensor):
    """Sparse by coordinates: `_index` [sparse dims, n] of values, those of one place are added."""

    _index: Tensor
    _coalesced: bool
    is_sparse = True
    layout = property(lambda self: wt.sparse_coo, doc="torch.sparse_coo.")  # type: ignore[assignment]

    @classmethod
    def make(cls, index: Tensor, value: Tensor, size: Sequence[int], coalesced: bool) -> CooTensor:
        """Of int64 indices [sparse dims, n] that fit, and values [n, dense dims]."""
        return cls._on(value, size, _index=index, _value=value, _coalesced=coalesced)

    def _like(self, values: Tensor) -> CooTensor:
        if values.device != self._index.device:
            return CooTensor.make(self._index.to(values.device), values, self.shape, self._coalesced)
        parts = {"_index": self._index, "_value": values, "_coalesced": self._coalesced}
        return CooTensor._on(values, self.shape, self._found, **parts)

    def taped_gradient(self, gradient: Tensor) -> CooTensor:
        if self._coalesced:
            return self._like(gradient)
        # Each of several values at one place has the gradient of their sum, which counts once.
        total, count = self._like(gradient).coalesce(), self._like(wt.ones_like(gradient)).coalesce()
        return total._like(total._value / count._value)

    def sparse_dim(self) -> int:
        """How many dims are sparse: the first ones."""
        return self._index.size(0)

    def dense_dim(self) -> int:
        """How many dims are dense."""
        return self._value.ndim - 1

    def _indices(self) -> Tensor:
        return self._index

    def _values(self) -> Tensor:
        return self._value.detach()

    def is_coalesced(self) -> bool:
        """Whether no element is named twice, and all are in order."""
        return self._coalesced

    def _coalesced_(self, coalesced: bool) -> CooTensor:
        self._coalesced = coalesced
        return self

    def indices(self) -> Tensor:
        """Where the values are: [sparse dims, n]. RuntimeError before coalesce()."""
        self._check_coalesced("indices")
        return self._index

    def values(self) -> Tensor:
        """The values. RuntimeError before coalesce()."""
        self._check_coalesced("values")
        return self._value

    def _check_coalesced(self, what: str) -> None:
        if not self._coalesced:
            raise RuntimeError(f"Cannot get {what} on an uncoalesced tensor, please call .coalesce() first")

    def coalesce(self) -> CooTensor:
        """The same tensor with every element named once, in order."""
        if self._coalesced:
            return self
        sizes = tuple(self.shape[: self._index.size(0)])
        places, inverse = wt.unique(flat_index(self._index, sizes), return_inverse=True)
        values = self._value.new_zeros((places.size(0), *self._value.shape[1:]))
        values = values.index_add(0, inverse, self._value)
        rows = []
        for size in reversed(sizes):
            rows.append(places % size)
            places = places // size
        index = _ops.stack(rows[::-1]) if rows else self._index[:, :1]
        return CooTensor.make(index, values, self.shape, True)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        parts = (self._index, self._value.detach(), tuple(self.shape), self._coalesced)
        return rebuild, (str(self.layout), parts, self.requires_grad)

    def __repr__(self, *, tensor_contents: str | None = None) -> str:  # type: ignore[override]
        return self._text({"indices": self._index})


class CompressedTensor(SparseTensor):
    """A matrix by compressed rows or columns: the values of line i are those at `_ptr[i]`..`_ptr[i + 1]`.

    `_index` [n] has their places in the line, and the values may have dense dims.
    """

    _ptr: Tensor
    _index: Tensor
    _by_rows: bool
    is_sparse = False
    is_sparse_csr = property(lambda self: self._by_rows, doc="Whether by rows.")  # type: ignore[assignment]
    layout = property(  # type: ignore[assignment]
        lambda self: wt.sparse_csr if self._by_rows else wt.sparse_csc,
        doc="torch.sparse_csr or torch.sparse_csc.",
    )

    @classmethod
    def make(
        cls, ptr: Tensor, index: Tensor, value: Tensor, size: Sequence[int], by_rows: bool
    ) -> CompressedTensor:
        """Of indices that fit."""
        return cls._on(value, size, _ptr=ptr, _index=index, _value=value, _by_rows=by_rows)

    def _like(self, values: Tensor) -> CompressedTensor:
        ptr, index = self._ptr, self._index
        if values.device != index.device:
            ptr, index = ptr.to(values.device), index.to(values.device)
            return CompressedTensor.make(ptr, index, values, self.shape, self._by_rows)
        parts = {"_ptr": ptr, "_index": index, "_value": values, "_by_rows": self._by_rows}
        return CompressedTensor._on(values, self.shape, self._found, **parts)

    def sparse_dim(self) -> int:
        """How many dims are sparse: 2."""
        return 2

    def dense_dim(self) -> int:
        """How many dims are dense."""
        return self._value.ndim - 1

    def values(self) -> Tensor:
        """The values, [n, dense dims]."""
        return self._value

    def _part(self, name: str, of_rows: bool) -> Tensor:
        if self._by_rows is not of_rows:
            kind = "row" if of_rows else "column"
            raise RuntimeError(
                f"{name} expected sparse {kind} compressed tensor layout but got {self.layout}"
            )
        return self._ptr if name[1:4] in ("row", "col") else self._index

    def crow_indices(self) -> Tensor:
        """Where each row starts and the last ends: [m + 1]."""
        return self._part("crow_indices", True)

    def col_indices(self) -> Tensor:
        """The columns of the values."""
        return self._part("col_indices", True)

    def ccol_indices(self) -> Tensor:
        """Where each column starts and the last ends: [n + 1]."""
        return self._part("ccol_indices", False)

    def row_indices(self) -> Tensor:
        """The rows of the values."""
        return self._part("row_indices", False)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        parts = (self._ptr, self._index, self._value.detach(), tuple(self.shape))
        return rebuild, (str(self.layout), parts, self.requires_grad)

    def __repr__(self, *, tensor_contents: str | None = None) -> str:  # type: ignore[override]
        names = ("crow_indices", "col_indices") if self._by_rows else ("ccol_indices", "row_indices")
        return self._text(dict(zip(names, (self._ptr, self._index))))


def _call(name: str, *args: Any, **kwargs: Any) -> Any:
    """What HANDLERS has for a function."""
    return HANDLERS[name](None, args, kwargs)


def rebuild(layout: str, parts: tuple[Any, ...], requires_grad: bool) -> Any:
    """A sparse tensor of what __reduce_ex__ wrote."""
    tensor: Any
    if layout == "torch.sparse_coo":
        tensor = CooTensor.make(*parts)
    else:
        ptr, index, value, size = parts
        tensor = CompressedTensor.make(ptr, index, value, size, layout == "torch.sparse_csr")
    return tensor.requires_grad_() if requires_grad else tensor


def flat_index(index: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The places of [dims, n] in a dense tensor of these sizes: [n]."""
    flat, place = index.new_zeros(index.size(1)), 1
    for row, size in zip(reversed(index.unbind(0)), reversed(sizes)):
        flat, place = flat + row * place, place * size
    return flat


def by_rows(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    """crow, col and values of a matrix; elements that are named twice stay apart.

    What was found out is kept with the places, which many products share.
    """
    if isinstance(x, CompressedTensor) and x._by_rows:
        return x._ptr, x._index, x._value
    version = x._index._version
    if x._found.get("version") != version:
        rows, columns = coordinates(x)
        order = None
        if not (isinstance(x, CooTensor) and x._coalesced):
            order = rows.argsort(stable=True)
            rows, columns = rows[order], columns[order]
        crow = _ops._convert_indices_from_coo_to_csr(rows, x.size(0))
        x._found.update(version=version, parts=(crow, columns, order))
    crow, col, order = x._found["parts"]
    return crow, col, x._value if order is None else x._value.index_select(0, order)


def coordinates(x: Any) -> tuple[Tensor, Tensor]:
    """The rows and the columns of a matrix's elements, in their order."""
    if isinstance(x, CooTensor):
        rows, columns = x._index.unbind(0)
        return rows, columns
    rows, columns = _ops._convert_indices_from_csr_to_coo(x._ptr, x._index, transpose=not x._by_rows).unbind(
        0
    )
    return rows, columns
