"""How tensors travel between processes: the storage as a file descriptor, the tensor as a view of it.

Tensors of one message that share a storage share it on the other side as well.
"""

from __future__ import annotations

import io
import os
import pickle
import threading
from collections.abc import Callable
from multiprocessing import context, reduction
from typing import Any

from .. import _C
from ..core import Tensor

_here = threading.local()  # .open: how the message being read finds the storages of its tensors

# Where a tensor's storage is, as bytes, and how many bytes before it were left out.
Found = tuple[Tensor, int]


def _rebuild(cls: type, number: int, geometry: tuple[Any, ...], requires_grad: bool) -> Tensor:
    return _on(cls, _here.open(number), geometry, requires_grad)


def _on(cls: type, found: Found, geometry: tuple[Any, ...], requires_grad: bool) -> Tensor:
    storage, skipped = found
    dtype, shape, strides, offset = geometry
    tensor = _C._on_storage(storage, dtype, shape, strides, offset - skipped // dtype.itemsize)
    if cls is Tensor:
        return tensor.requires_grad_(requires_grad) if requires_grad else tensor
    return Tensor._make_subclass(cls, tensor, requires_grad)


def _travels(tensor: Tensor) -> bool:
    """Whether the storage is sent, instead of what the class's own __reduce_ex__ says."""
    from ..nn.parameter import Parameter

    return tensor.device.type == "cpu" and type(tensor).__reduce_ex__ in (
        Tensor.__reduce_ex__,
        Parameter.__reduce_ex__,
    )


def _geometry(tensor: Tensor) -> tuple[Any, ...]:
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not "
            "support crossing process boundaries.  If you just want to transfer the data, call detach() on "
            "the tensor before serializing (e.g., putting it on the queue)."
        )
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


class Pickler(reduction.ForkingPickler):
    """Pickles one message; of the tensors in it, which `tensors` lists, only the geometry.

    The memory itself travels as a descriptor.
    """

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        super().__init__(self._buffer, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []

    def reducer_override(self, obj: object) -> Any:
        """Called by the pickler for what is not of a type of its own.

        Args:
            obj: which is to be pickled.
        """
        if not isinstance(obj, Tensor) or not _travels(obj):
            return NotImplemented
        arguments = (type(obj), len(self.tensors), _geometry(obj), obj.requires_grad)
        self.tensors.append(obj)
        return _rebuild, arguments, obj.__dict__ or None

    def pack(self, obj: object) -> bytes:
        """The pickle of `obj`.

        Args:
            obj: which is to be pickled.
        """
        self.dump(obj)
        return self._buffer.getvalue()


def loads(data: Any, open_storage: Callable[[int], Found]) -> Any:
    """What a Pickler packed. `open_storage` gets numbers of tensors in its list.

    Args:
        data: bytes.
        open_storage: returns the memory.
    """
    outer = getattr(_here, "open", None)
    _here.open = open_storage
    try:
        return pickle.loads(data)
    finally:
        _here.open = outer


def pack(obj: object) -> tuple[bytes, list[int], Any]:
    """A message for `unpack`: data, descriptors, and what must live until it is sent.

    The storages in it are moved into shared memory, as by share_memory_().
    """
    pickler = Pickler()
    body = pickler.pack(obj)
    storages = [_C._storage_bytes(tensor) for tensor in pickler.tensors]
    files: dict[int, int] = {}  # and their number
    table = [
        (files.setdefault(_C._share_memory(storage), len(files)), storage.numel()) for storage in storages
    ]
    return pickle.dumps((table, body), pickle.HIGHEST_PROTOCOL), list(files), storages


def unpack(data: bytes, files: list[int]) -> Any:
    """The object of a message. The descriptors are taken over.

    Args:
        data: of the message.
        files: descriptors.
    """
    left: dict[int, int] = dict(enumerate(files))
    opened: dict[int, Tensor] = {}
    table, body = pickle.loads(data)

    def open_storage(number: int) -> Found:
        file, size = table[number]
        if file not in opened:
            opened[file] = _C._map_shared(left.pop(file), size, True)
        return opened[file], 0

    try:
        return loads(body, open_storage)
    finally:
        for file in left.values():
            os.close(file)


# ---- arguments of processes that are spawned ----


class _Inherited:
    """A storage whose descriptor the process that is being started inherits."""

    def __init__(self, storage: Tensor) -> None:
        self.file = reduction.DupFd(_C._share_memory(storage))
        self.storage = storage

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_inherited, (self.file, self.storage.numel())


def _open_inherited(file: Any, size: int) -> Found:
    return _C._map_shared(file.detach(), size, True), 0


def reduce_tensor(tensor: Tensor) -> Any:
    """As an argument of a process that is being started, the tensor shares its memory; else it is copied.

    Args:
        tensor: any.
    """
    process = context.get_spawning_popen()
    if process is None or not _travels(tensor):
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    geometry, storage = _geometry(tensor), _C._storage_bytes(tensor)
    known = vars(process).setdefault("_warptape_storages", {})
    file = _C._share_memory(storage)
    if file not in known:
        known[file] = _Inherited(storage)
    return _on, (type(tensor), known[file], geometry, tensor.requires_grad), tensor.__dict__ or None


def init_reductions() -> None:
    """Makes multiprocessing share the tensors among the arguments of processes that it starts."""
    from ..nn.parameter import Parameter

    for cls in (Tensor, Parameter):
        reduction.ForkingPickler.register(cls, reduce_tensor)
