"""Storages: the blocks of bytes that tensors view."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from . import _C
from ._legacy import _KINDS
from ._missing import lookup as _lookup
from ._tensor import Tensor, copied_storage

__all__ = ["TypedStorage", "UntypedStorage"]


class UntypedStorage:
    """The bytes that one or more tensors view. `Tensor.untyped_storage()` and `map_location` give them.

    Args:
        size: bytes, uninitialised.
        device: where they lie.
    """

    dtype = _C.uint8
    _bytes: Tensor

    def __init__(self, size: int = 0, *, device: Any = None) -> None:
        self._bytes = _C._functions.empty(size * self.dtype.itemsize, dtype=_C.uint8, device=device)

    @classmethod
    def _on(cls, data: Tensor) -> Any:
        """The storage with these bytes."""
        made = cls.__new__(cls)
        made._bytes = data
        return made

    @classmethod
    def from_file(cls, filename: Any, shared: bool = False, nbytes: int = 0) -> Any:
        """The first `nbytes` of a file (for a typed storage: elements), mapped; writes stay in memory.

        Raises:
            NotImplementedError: `shared`, where writes would go to the file.
            RuntimeError: the file is shorter.
        """
        from .serialization._files import Mapped

        if shared:
            raise NotImplementedError("from_file: shared=True is not there: writes would go to the file")
        size = nbytes * cls.dtype.itemsize
        with open(filename, "rb") as file:
            length = os.fstat(file.fileno()).st_size
            if size > length:
                raise RuntimeError(f"from_file: {filename} has {length} bytes, {size} are asked for")
            return cls._on(Mapped(file).tensor(0, _C.uint8, (size,)) if size else _C._functions.empty(0))

    @property
    def _elements(self) -> Tensor:
        return _C._on_storage(self._bytes, self.dtype, (self.size(),), (1,), 0)

    @property
    def device(self) -> _C.device:
        """Where the bytes lie."""
        return self._bytes.device

    @property
    def is_cuda(self) -> bool:
        """Whether the bytes lie on a GPU."""
        return self._bytes.is_cuda

    def nbytes(self) -> int:
        """How many bytes there are."""
        return self._bytes.numel()

    def size(self) -> int:
        """How many elements there are."""
        return self.nbytes() // self.dtype.itemsize

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    def data_ptr(self) -> int:
        """The address of the first byte."""
        return self._bytes.data_ptr()

    def untyped(self) -> UntypedStorage:
        """The same bytes without a dtype."""
        return UntypedStorage._on(self._bytes)

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        """The bytes on a device; the storage itself where they are there."""
        moved = self._bytes.to(device=device, non_blocking=non_blocking)
        return self if moved is self._bytes else self._on(moved)

    def cpu(self) -> Any:
        """The bytes in host memory."""
        return self.to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:
        """The bytes on a GPU, the current one by default."""
        return self._on(self._bytes.cuda(device, non_blocking))

    def clone(self) -> Any:
        """A copy."""
        return self._on(self._bytes.clone())

    __copy__ = clone

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        return self._on(copied_storage(self._bytes, memo) if len(self) else self._bytes.clone())

    def tolist(self) -> list[Any]:
        """The elements."""
        return self._elements.tolist()

    def __len__(self) -> int:
        return self.size()

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self._elements[index].item()
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise RuntimeError(f"storage: a slice of step {step} is none of consecutive bytes; take step 1")
        size, width = max(0, stop - start), self.dtype.itemsize
        address = self.data_ptr() + start * width
        view = (self._bytes, address, _C.uint8, (size * width,), None, self.device)
        return self._on(_C._from_memory(*view) if size else self._bytes[:0].clone())

    def __setitem__(self, index: Any, value: Any) -> None:
        self._elements[index] = value

    def __repr__(self) -> str:
        kind = f"dtype={self.dtype}, " if isinstance(self, TypedStorage) else ""
        return f"{type(self).__name__}({kind}device={self.device}) of size {len(self)}"


class TypedStorage(UntypedStorage):
    """A storage read as elements of one dtype: what files hold, and `Tensor.storage()`."""

    def __new__(cls, size: int = 0, *, dtype: Any = None, device: Any = None) -> Any:  # noqa: D102
        return object.__new__(cls if dtype is None else storage_class_of(dtype))

    def __init__(self, size: int = 0, *, dtype: Any = None, device: Any = None) -> None:
        super().__init__(size, device=device)


_COMPLEX = {"ComplexFloat": "complex64", "ComplexDouble": "complex128"}


@cache
def storage_class(name: str) -> type[UntypedStorage] | None:
    """`FloatStorage` and its kin, or UntypedStorage; None for one whose dtype is not there."""
    if name in ("UntypedStorage", "TypedStorage"):
        return globals()[name]
    kind = name.removesuffix("Storage")
    dtype = _KINDS.get(kind) or getattr(_C, _COMPLEX.get(kind, ""), None)
    return (
        type(name, (TypedStorage,), {"dtype": dtype, "__module__": "warptape"})
        if dtype and kind != name
        else None
    )


@cache
def storage_class_of(dtype: Any) -> type[UntypedStorage]:
    """The storage class that has a dtype; UntypedStorage where none has."""
    classes = (storage_class(f"{kind}Storage") for kind in (*_KINDS, *_COMPLEX))
    return next((c for c in classes if c and c.dtype == dtype), UntypedStorage)


__getattr__ = _lookup(__name__)
