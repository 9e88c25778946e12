"""Storages: the blocks of bytes that tensors view."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from numbers import Integral
from typing import Any

from .. import _C
from .legacy import _KINDS
from .registry import offered
from .tensor_class import Tensor, copied_storage

__all__ = ["TypedStorage", "UntypedStorage"]


class UntypedStorage:
    """The bytes that one or more tensors view. `Tensor.untyped_storage()` and `map_location` give them.

    Args:
        data: how many bytes, uninitialised, or a sequence of their values.
        device: where they lie.
    """

    dtype = _C.uint8
    _bytes: Tensor

    def __init__(self, *data: Any, device: Any = None) -> None:
        self._bytes = _bytes_of(data, self.dtype, device)

    @classmethod
    def _on(cls, data: Tensor) -> Any:
        """The storage with these bytes."""
        storage = cls.__new__(cls)
        storage._bytes = data
        return storage

    @classmethod
    def _new_shared(cls, size: int, *, device: Any = "cpu") -> Any:
        """A storage of zeros in memory that other processes may share."""
        return cls._on(_C._functions.zeros(size, dtype=_C.uint8, device=device)).share_memory_()

    @classmethod
    def from_file(cls, filename: str | os.PathLike[str], shared: bool = False, nbytes: int = 0) -> Any:
        """The first `nbytes` of a file (for a typed storage: elements), mapped; writes stay in memory.

        With `shared` they go to the file, which is made or lengthened where it must be.

        Raises:
            RuntimeError: the file is shorter, and not `shared`.
        """
        size = nbytes * cls.dtype.itemsize
        if shared and not os.path.exists(filename):
            open(filename, "xb").close()
        with open(filename, "r+b" if shared else "rb") as file:
            length = os.fstat(file.fileno()).st_size
            if shared and size > length:
                length = file.truncate(size)
            if size > length:
                raise RuntimeError(f"from_file: {filename} has {length} bytes, {size} are asked for")
            if not size:
                return cls._on(_C._functions.empty(0, dtype=_C.uint8))
            return cls._on(offered("mapped files")(file, shared).tensor(0, _C.uint8, (size,)))

    def _fix_weakref(self) -> None:
        """Does nothing, as Tensor._fix_weakref."""

    @property
    def _elements(self) -> Tensor:
        if self.device.type == "meta":
            raise NotImplementedError("storage: Not available for 'meta' device type: it has no elements")
        return bytes_as(self, None)

    @property
    def device(self) -> _C.device:
        """Where the bytes lie; of a storage on meta, which has none, the meta device.

        >>> torch.zeros(3).untyped_storage().device
        device(type='cpu')
        """
        return self._bytes.device

    @property
    def is_cuda(self) -> bool:
        """Whether the bytes lie on a GPU."""
        return self._bytes.is_cuda

    def nbytes(self) -> int:
        """How many bytes the storage has.

        >>> torch.zeros(3).untyped_storage().nbytes()
        12
        """
        return self._bytes.numel()

    def size(self) -> int:
        """How many elements the storage has.

        Elements of an untyped storage are bytes; those of a typed one have its dtype.

        >>> torch.zeros(3).untyped_storage().size()
        12
        """
        return self.nbytes() // self.dtype.itemsize

    def element_size(self) -> int:
        """Bytes of one element: 1 for an untyped storage, else those of its dtype.

        >>> torch.zeros(3).untyped_storage().element_size()
        1
        """
        return self.dtype.itemsize

    def data_ptr(self) -> int:
        """The address of the first byte.

        Tensors that share a storage have their data at an offset from it.
        """
        return self._bytes.data_ptr()

    def untyped(self) -> UntypedStorage:
        """The same bytes without a dtype.

        Returns:
            An UntypedStorage that shares the memory.
        """
        return UntypedStorage._on(self._bytes)

    @property
    def _cdata(self) -> int:
        return _C._storage_address(self._bytes)

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        """The bytes on a device; the storage itself where they are there.

        Args:
            device: as "cuda:0".
            non_blocking: whether the copy may run beside the program.
        """
        if self.device.type == "meta" and _C.device(device).type != "meta":
            raise NotImplementedError("storage: Cannot copy out of meta storage, which has no data")
        moved = self._bytes.to(device=device, non_blocking=non_blocking)
        return self if moved is self._bytes else self._on(moved)

    def cpu(self) -> Any:
        """The bytes in host memory: `to("cpu")`.

        Returns:
            This storage where it lies there, else a copy.
        """
        return self.to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:
        """The bytes on a GPU, the current one by default.

        Args:
            device: the current one if None.
            non_blocking: whether the copy may run beside the program.
        """
        return self._on(self._bytes.cuda(device, non_blocking))

    def clone(self) -> Any:
        """A copy of the bytes on the same device.

        >>> a = torch.zeros(2).untyped_storage()
        >>> a.clone().data_ptr() == a.data_ptr()
        False
        """
        return self._on(self._bytes.clone())

    __copy__ = clone

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        return self._on(copied_storage(self._bytes, memo) if len(self) else self._bytes.clone())

    def copy_(self, source: UntypedStorage, non_blocking: bool = False) -> Any:
        """Copies the elements of a storage of as many, converted to this one's dtype.

        Raises:
            NotImplementedError: the source is on the meta device.
            RuntimeError: another number of elements.
        """
        if source.device.type == "meta":
            raise NotImplementedError("storage: Cannot copy out of meta storage, which has no data")
        if len(source) != len(self):
            raise RuntimeError(
                f"copy_: expected a storage of size {len(self)}, got one of size {len(source)}"
            )
        self._elements.copy_(source._elements, non_blocking)
        return self

    def fill_(self, value: Any) -> Any:
        """Sets all elements to a number.

        Args:
            value: of the dtype.
        """
        self[:] = value
        return self

    def resizable(self) -> bool:
        """Whether `resize_` may be called.

        It may where nobody outside, such as NumPy or another process, sees the memory.
        """
        return _C._is_resizable(self._bytes)

    def resize_(self, size: int) -> Any:
        """Another number of elements; those that stay keep their values, new ones are not set.

        Raises:
            RuntimeError: a storage that is not `resizable()`.
        """
        _C._resize_storage(self._bytes, size * self.dtype.itemsize)
        return self

    def is_shared(self) -> bool:
        """Whether other processes can share the memory.

        It is so after `share_memory_`, and always on a GPU.
        """
        return _C._is_shared(self._bytes)

    def share_memory_(self) -> Any:
        """Moves the bytes into memory that other processes can share.

        Returns:
            This storage.

        Raises:
            RuntimeError: on the meta device, which has no bytes.
        """
        if self.device.type == "meta":
            raise RuntimeError("share_memory_: only available on CPU and CUDA, got a storage on meta")
        self._bytes.share_memory_()
        return self

    def _write_file(self, f: Any, is_real_file: bool, save_size: bool, element_size: int) -> None:
        """Writes the bytes to a file, with the number of elements before them where `save_size` is set."""
        if self.device.type == "meta":
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        if save_size:
            f.write((self.nbytes() // element_size).to_bytes(8, "little"))
        f.write(self._bytes.cpu().numpy().data)

    def _share_fd_cpu_(self) -> Any:
        """Not available: torch.multiprocessing hands storages over itself. RuntimeError on other devices."""
        if self.device.type != "cpu":
            raise RuntimeError(f"_share_fd_cpu_: only available on CPU, got a storage on {self.device.type}")
        raise NotImplementedError("_share_fd_cpu_: storages have no descriptor; share_memory_() shares them")

    _share_filename_cpu_ = _share_fd_cpu_

    def is_pinned(self, device: Any = None) -> bool:
        """Whether the memory is page-locked for a GPU.

        Args:
            device: without effect.
        """
        return self._bytes.is_pinned(device)

    def pin_memory(self, device: Any = None) -> Any:
        """A copy in page-locked memory, the storage itself where it is.

        Args:
            device: without effect.
        """
        return self if self.is_pinned() else self._on(self._bytes.pin_memory(device))

    def get_device(self) -> int:
        """The index of the GPU where the bytes lie.

        >>> torch.zeros(2).untyped_storage().get_device()  # -1 on the CPU
        -1
        """
        return self._bytes.get_device()

    def new(self) -> Any:
        """An empty storage of the same class on the same device.

        >>> torch.zeros(2).untyped_storage().new().nbytes()
        0
        """
        return self._on(self._bytes.new_empty(0))

    def byteswap(self, dtype: _C.dtype) -> None:
        """Reverses, in place, the bytes of each number of this dtype (each part, of a complex one).

        Args:
            dtype: of the numbers.
        """
        width = dtype.itemsize // (2 if dtype.is_complex else 1)
        numbers = self._bytes[: self.nbytes() // width * width].view(-1, width)
        numbers.copy_(numbers.flip(1))

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """The name of the class, `torch.FloatStorage`; with a class, the elements as that one has them.

        Args:
            dtype: a class or its name.
            non_blocking: without effect.
        """
        if dtype is None:
            return f"torch.{'cuda.' if self.is_cuda else ''}{type(self).__name__}"
        kind = storage_class(dtype.rpartition(".")[2]) if isinstance(dtype, str) else dtype
        if not (isinstance(kind, type) and issubclass(kind, UntypedStorage)):
            raise ValueError(f"type: expected a class of storages or its name, got {dtype!r}")
        return self if kind is type(self) else self._cast(kind.dtype, kind)

    def _cast(self, dtype: _C.dtype, kind: Any = None) -> Any:
        return (kind or storage_class_of(dtype))._on(_C._storage_bytes(self._elements.to(dtype, copy=True)))

    def tolist(self) -> list[Any]:
        """The elements as Python numbers.

        >>> torch.tensor([1, 2], dtype=torch.uint8).untyped_storage().tolist()
        [1, 2]
        """
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
        if isinstance(value, UntypedStorage):
            raise RuntimeError(f"cannot set item with {type(value).__name__}; copy_() copies a storage")
        self._elements[index] = value

    def __iter__(self) -> Any:
        return iter(self.tolist())

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.nbytes()

    def __repr__(self) -> str:
        kind = f"dtype={self.dtype}, " if isinstance(self, TypedStorage) else ""
        return f"{type(self).__name__}({kind}device={self.device}) of size {len(self)}"


def storage_on(kind: type[UntypedStorage], data: Tensor) -> Any:
    """A storage with the bytes of a tensor.

    Args:
        kind: its class.
        data: uint8 [N].
    """
    return kind._on(data)


class TypedStorage(UntypedStorage):
    """A storage read as elements of one dtype: what files hold, and `Tensor.storage()`.

    Args:
        data: how many elements, uninitialised, or a sequence of their values.
        wrap_storage: an UntypedStorage whose bytes it reads, instead of `data`.
        dtype: of the elements; the default one where it and `wrap_storage` are left out. The classes with a
            dtype in their names (`FloatStorage`) take none, and no device.
        device: where they lie.

    Raises:
        RuntimeError: arguments that do not go together.
        TypeError: `data` is neither a number nor a sequence, or `wrap_storage` no UntypedStorage.
    """

    def __new__(  # noqa: D102
        cls,
        *data: Any,
        wrap_storage: Any = None,
        dtype: _C.dtype | None = None,
        device: Any = None,
        _internal: Any = None,
    ) -> Any:
        if cls is not TypedStorage:
            for name, value in (("device", device), ("dtype", dtype)):
                if value is not None:
                    raise RuntimeError(f"{cls.__name__}: {name!r} cannot be specified; the class has it")
        elif dtype is None:
            if wrap_storage is not None:
                raise RuntimeError("TypedStorage: Argument 'dtype' must be specified with 'wrap_storage'")
            dtype = _C._get_default_dtype()
        elif not isinstance(dtype, _C.dtype):
            raise TypeError(f"Argument 'dtype' must be torch.dtype, not {type(dtype).__name__}")
        if wrap_storage is None:
            return object.__new__(cls if dtype is None else storage_class_of(dtype))
        if data:
            raise RuntimeError("No positional arguments should be given with 'wrap_storage'")
        if type(wrap_storage) is not UntypedStorage:
            raise TypeError(
                f"Argument 'wrap_storage' must be UntypedStorage, but got {type(wrap_storage).__name__}"
            )
        if device is not None:
            raise RuntimeError("Argument 'device' should not be specified with 'wrap_storage', which has it")
        return object.__new__(cls if dtype is None else storage_class_of(dtype))

    def __init__(
        self,
        *data: Any,
        wrap_storage: Any = None,
        dtype: _C.dtype | None = None,
        device: Any = None,
        _internal: Any = None,
    ) -> None:
        if wrap_storage is not None:
            self._bytes = wrap_storage._bytes
        else:
            super().__init__(*data, device=device)

    @classmethod
    def _from_buffer(
        cls, data: Any, *, dtype: _C.dtype | None = None, device: Any = None, **kwargs: Any
    ) -> Any:
        """from_buffer() under the name that PyTorch has inside."""
        return cls.from_buffer(data, **kwargs)

    @classmethod
    def from_buffer(cls, data: Any, byte_order: str = "native", count: int = -1, offset: int = 0) -> Any:
        """A copy of the numbers in a buffer: `count` of them, or all, from byte `offset` on.

        Raises:
            ValueError: the byte order is none of "native", "little" and "big", or the buffer is too short or
                ends within a number.
        """
        if byte_order not in ("native", "little", "big"):
            raise ValueError(f"from_buffer: invalid byte_order {byte_order!r}; take native, little or big")
        held = memoryview(data).cast("B")[offset:]
        width = cls.dtype.itemsize
        if count < 0 and len(held) % width:
            raise ValueError(f"from_buffer: {len(held)} bytes are no multiple of the {width} of an element")
        size = len(held) if count < 0 else count * width
        if size > len(held):
            raise ValueError(f"from_buffer: the buffer has {len(held)} bytes, {size} are asked for")
        storage = cls._on(_C._tensor(list(held[:size]), _C.uint8, None, False, True))
        if byte_order == "big":
            storage.untyped().byteswap(cls.dtype)
        if cls.dtype == _C.bool:
            storage._bytes.copy_(storage._bytes != 0)
        return storage

    @property
    def _untyped_storage(self) -> UntypedStorage:
        return self.untyped()

    def pickle_storage_type(self) -> str:
        """The name that files have for the class."""
        return type(self).__name__


def _bytes_of(data: tuple[Any, ...], dtype: _C.dtype, device: Any) -> Tensor:
    """The bytes of a new storage: of a size, or with values."""
    if len(data) > 1:
        raise RuntimeError(f"Too many positional arguments: expected a size or a sequence, got {data}")
    first = data[0] if data else 0
    if isinstance(first, str):
        raise TypeError(f"invalid data type {type(first).__name__!r}: expected a size or a sequence")
    if isinstance(first, Integral):
        return _C._functions.empty(int(first) * dtype.itemsize, dtype=_C.uint8, device=device)
    if isinstance(first, Tensor) or not isinstance(first, Iterable):
        raise TypeError(
            f"Argument type not recognized: expected a size or a sequence, got {type(first).__name__}"
        )
    values = list(first)
    tensor = _C._tensor(values, dtype, None, False, True) if values else _C._functions.empty(0, dtype=dtype)
    return _C._storage_bytes(tensor).to(device)


def bytes_as(storage: UntypedStorage, dtype: _C.dtype | None) -> Tensor:
    """The elements of a storage as a tensor on its memory, a typed one's in its own dtype.

    Raises:
        RuntimeError: a typed storage of another dtype than `dtype`.
    """
    kind = dtype or storage.dtype
    if isinstance(storage, TypedStorage) and storage.dtype != kind:
        raise RuntimeError(f"Expected a Storage of type {kind}, got one of {storage.dtype}")
    begin = storage._bytes.storage_offset() // kind.itemsize  # of a part of another storage
    return _C._on_storage(storage._bytes, kind, (storage.nbytes() // kind.itemsize,), (1,), begin)


# FloatStorage.double() and the like: the elements, converted.
for _name, _dtype in (
    *((kind.lower(), dtype) for kind, dtype in _KINDS.items()),
    ("complex_float", _C.complex64),
    ("complex_double", _C.complex128),
):
    _cast: Any = lambda self, _dtype=_dtype: self._cast(_dtype)
    _cast.__doc__ = f"A new storage of the elements, converted to {_dtype}."
    setattr(UntypedStorage, _name, _cast)


@cache
def _dtype_to_storage_type_map() -> dict[Any, str]:
    """The names of the storages' classes, by dtype, as PyTorch's own files ask for them."""
    return {
        cls.dtype: cls.__name__ for name in (*_KINDS, *_COMPLEX) if (cls := storage_class(f"{name}Storage"))
    }


_COMPLEX = {"ComplexFloat": "complex64", "ComplexDouble": "complex128"}


@cache
def storage_class(name: str) -> type[UntypedStorage] | None:
    """`FloatStorage` or another typed class, or UntypedStorage; None for one whose dtype is not there.

    Args:
        name: as "FloatStorage".
    """
    if name in ("UntypedStorage", "TypedStorage"):
        return globals()[name]
    kind = name.removesuffix("Storage")
    dtype = _KINDS.get(kind) or getattr(_C, _COMPLEX.get(kind, ""), None)
    parts = {"dtype": dtype, "__module__": "warptape", "__doc__": f"A TypedStorage of {dtype}."}
    return type(name, (TypedStorage,), parts) if dtype and kind != name else None


@cache
def storage_class_of(dtype: _C.dtype) -> type[UntypedStorage]:
    """The storage class that has a dtype; UntypedStorage where none has.

    Args:
        dtype: as torch.float32.
    """
    classes = (storage_class(f"{kind}Storage") for kind in (*_KINDS, *_COMPLEX))
    return next((c for c in classes if c and c.dtype == dtype), UntypedStorage)


@cache
def typed_class_of(dtype: _C.dtype) -> type[UntypedStorage]:
    """The class of Tensor.storage(): for a dtype without a class of its name, a TypedStorage of it.

    Args:
        dtype: as torch.float32.
    """
    cls = storage_class_of(dtype)
    if cls is not UntypedStorage:
        return cls
    parts = {"dtype": dtype, "__module__": "warptape", "__doc__": f"A TypedStorage of {dtype}."}
    return type("TypedStorage", (TypedStorage,), parts)
