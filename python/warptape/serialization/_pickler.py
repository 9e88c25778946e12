"""Writes pickles of protocol 2 without the pickle module, with tensors as PyTorch's files have them."""

from __future__ import annotations

import copyreg
import functools
import struct
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import warptape

from .. import _C
from .._functions import _find_op
from .._interchange import raw_bytes
from .._tensor import Tensor
from ..storage import UntypedStorage, storage_class_of
from . import _names
from ._errors import PicklingError

_BATCH = 1000  # items that go onto a reader's stack at once


class Call(NamedTuple):
    """A call to write in the place of an object."""

    what: Any
    args: tuple[Any, ...]


class Global:
    """A name to write for what has none here."""

    def __init__(self, module: str, name: str) -> None:
        self.place = module, name


_TENSOR, _TENSOR3 = (Global("torch._utils", f"_rebuild_tensor_v{n}") for n in (2, 3))
_META = Global("torch._utils", "_rebuild_meta_tensor_no_storage")
_PARAMETER, _PARAMETER_WITH_STATE = (
    Global("torch._utils", f"_rebuild_parameter{end}") for end in ("", "_with_state")
)
_FROM_TYPE = Global("torch._tensor", "_rebuild_from_type_v2")
_SPARSE = Global("torch._utils", "_rebuild_sparse_tensor")
_LAYOUT = Global("torch.serialization", "_get_layout")
_PLACES = {"_functions": "torch", "_nn": "torch.nn.functional", "_linalg": "torch.linalg"}  # of ops
_ENCODE = Global("_codecs", "encode")


class Pickler:
    """The pickle of one object; `data` has its bytes then, `storages` the bytes tensors that belong to it."""

    def __init__(self, obj: Any) -> None:
        self.data = bytearray(b"\x80\x02")
        self.memo: dict[int, int] = {}
        self.alive: list[Any] = []  # what the memo knows by id
        self.names: dict[tuple[str, str], int] = {}
        self.storages: list[Tensor] = []
        self.keys: dict[tuple[int, int], tuple[int, Any]] = {}  # (address, bytes) -> key, dtype
        self.save(obj)
        self.data += b"."

    def records(self) -> Iterator[tuple[str, Any]]:
        """What an archive has of the object."""
        yield "data.pkl", bytes(self.data)
        yield ".format_version", b"1"
        yield ".storage_alignment", b"64"
        yield "byteorder", b"little"
        for i, data in enumerate(self.storages):
            host = data.cpu()  # lives as long as its bytes are in use
            yield f"data/{i}", raw_bytes(host)
        yield "version", b"3\n"

    # ---- values ----

    def save(self, obj: Any) -> None:
        """Writes one object."""
        kind = type(obj)
        if obj is None or obj is True or obj is False:
            self.data += {None: b"N", True: b"\x88", False: b"\x89"}[obj]
        elif kind is int:
            self._int(obj)
        elif kind is float:
            self.data += b"G" + struct.pack(">d", obj)
        elif id(obj) in self.memo:
            self._get(self.memo[id(obj)])
        elif kind is str:
            text = obj.encode("utf-8", "surrogatepass")
            self.data += b"X" + struct.pack("<I", len(text)) + text
            self._remember(obj)
        elif kind is Global:
            self._name(*obj.place)
        elif kind is Call:
            self._call(*obj)
        elif kind in _CONTAINERS:
            _CONTAINERS[kind](self, obj)
        elif isinstance(obj, Tensor) and kind.__reduce_ex__ in _OWN_TENSORS:
            self._tensor(obj)
        elif isinstance(obj, UntypedStorage):
            self._storage(obj._bytes, obj.dtype)
        elif isinstance(obj, _C.dtype):
            self._name("torch", obj.__name__)
        elif getattr(kind, "layout", None) == "torch.sparse_coo":
            parts = (obj._indices(), obj._values(), obj.shape, obj.is_coalesced())
            self._call(_SPARSE, (Call(_LAYOUT, (obj.layout,)), parts))
            self._remember(obj)
        elif isinstance(obj, type | types.FunctionType | types.BuiltinFunctionType):
            self._global(obj)
        else:
            self._reduced(obj, self._reduce(obj))

    def _get(self, index: int) -> None:
        self.data += b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)

    def _put(self) -> int:
        index = len(self.alive)
        self.data += b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)
        return index

    def _remember(self, obj: Any) -> None:
        self.memo[id(obj)] = self._put()
        self.alive.append(obj)

    def _int(self, n: int) -> None:
        if 0 <= n < 256:
            self.data += b"K" + bytes([n])
        elif 0 <= n < 65536:
            self.data += b"M" + struct.pack("<H", n)
        elif -(1 << 31) <= n < 1 << 31:
            self.data += b"J" + struct.pack("<i", n)
        else:
            body = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
            short = len(body) < 256
            self.data += (b"\x8a" + bytes([len(body)])) if short else (b"\x8b" + struct.pack("<i", len(body)))
            self.data += body

    def _bytes(self, data: bytes) -> None:
        self._call(_ENCODE, (data.decode("latin-1"), "latin1"))
        self._remember(data)

    def _tuple(self, items: tuple[Any, ...]) -> None:
        if not items:
            self.data += b")"
            return
        if len(items) > 3:
            self.data += b"("
        for item in items:
            self.save(item)
        self.data += {1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(items), b"t")
        self._remember(items)

    def _list(self, items: list[Any]) -> None:
        self.data += b"]"
        self._remember(items)
        self._append(items)

    def _dict(self, items: dict[Any, Any]) -> None:
        self.data += b"}"
        self._remember(items)
        self._set(items.items())

    def _append(self, items: Any) -> None:
        items = list(items)
        for at in range(0, len(items), _BATCH):
            self.data += b"("
            for item in items[at : at + _BATCH]:
                self.save(item)
            self.data += b"e"

    def _set(self, pairs: Any) -> None:
        pairs = list(pairs)
        for at in range(0, len(pairs), _BATCH):
            self.data += b"("
            for key, value in pairs[at : at + _BATCH]:
                self.save(key)
                self.save(value)
            self.data += b"u"

    # ---- objects ----

    def _name(self, module: str, name: str) -> None:
        if (module, name) in self.names:
            self._get(self.names[module, name])
            return
        self.data += f"c{module}\n{name}\n".encode()
        self.names[module, name] = self._put()
        self.alive.append(None)

    def _global(self, obj: Any, name: str | None = None) -> None:
        name = name or obj.__qualname__
        module = getattr(obj, "__module__", None) or "builtins"
        resolved: Any = sys.modules.get(module)
        owner = None
        for part in name.split("."):
            owner, resolved = resolved, getattr(resolved, part, None)
        if resolved is not obj:
            raise PicklingError(f"Can't pickle {obj!r}: attribute lookup {module}.{name} failed")
        module, short = _names.theirs(module, name, obj)
        if "." in short:  # a name that protocol 2 cannot write
            self._call(Global("builtins", "getattr"), (owner, name.rpartition(".")[2]))
        else:
            self._name(module, short)

    def _call(self, what: Any, args: tuple[Any, ...]) -> None:
        self.save(what)
        self.save(args)
        self.data += b"R"

    def _reduce(self, obj: Any) -> Any:
        special: Callable[[Any], Any] | None = copyreg.dispatch_table.get(type(obj))
        return special(obj) if special else obj.__reduce_ex__(2)

    def _reduced(self, obj: Any, reduced: Any) -> None:
        """Writes what `__reduce_ex__` returned."""
        if isinstance(reduced, str):
            self._global(obj, reduced)
            self._remember(obj)
            return
        if reduced[0] is _find_op and reduced[1][0] in _PLACES:
            self._name(_PLACES[reduced[1][0]], reduced[1][1])
            return
        what, args, state, items, pairs, setter = (*reduced, None, None, None, None)[:6]
        if setter is not None:
            raise PicklingError(
                f"save: {type(obj).__name__} sets its state by a function, which is not supported"
            )
        if getattr(what, "__name__", "") == "__newobj_ex__":
            cls, given, named = args
            what, args = functools.partial(cls.__new__, cls, *given, **named), ()
        if getattr(what, "__name__", "") == "__newobj__":
            self.save(args[0])
            self.save(args[1:])
            self.data += b"\x81"
        else:
            self._call(what, args)
        self._remember(obj)
        self._append(items or ())
        self._set(pairs or ())
        if state is not None:
            self.save(state)
            self.data += b"b"

    # ---- tensors ----

    def _tensor(self, t: Tensor) -> None:
        kind, state = type(t), t.__dict__ or None
        make, args = self._rebuilt(t)
        if kind is warptape.nn.Parameter:
            args = (t.data, t.requires_grad, OrderedDict())
            self._call(*((_PARAMETER_WITH_STATE, (*args, state)) if state else (_PARAMETER, args)))
        elif kind is not Tensor or state:
            self._call(_FROM_TYPE, (make, kind, args, state or {}))
        else:
            self._call(make, args)
        self._remember(t)

    def _rebuilt(self, t: Tensor) -> tuple[Global, tuple[Any, ...]]:
        size, stride = tuple(t.shape), t.stride()
        if t.is_meta:
            return _META, (t.dtype, size, stride, t.requires_grad)
        typed = storage_class_of(t.dtype)
        storage = typed._on(_C._storage_bytes(t))
        args: tuple[Any, ...] = (storage, t.storage_offset(), size, stride, t.requires_grad, OrderedDict())
        return (_TENSOR, args) if typed is not UntypedStorage else (_TENSOR3, (*args, t.dtype))

    def _storage(self, data: Tensor, dtype: Any) -> None:
        place = data.data_ptr(), data.numel()
        key, before = self.keys.get(place, (len(self.storages), dtype))
        if before != dtype:
            raise RuntimeError(
                "Cannot save multiple tensors or storages that view the same data as different types"
            )
        if key == len(self.storages):
            self.storages.append(data)
            if data.numel():
                self.keys[place] = key, dtype
        name, count = storage_class_of(dtype).__name__, data.numel() // dtype.itemsize
        typed = Global("torch.storage" if name == "UntypedStorage" else "torch", name)
        if name == "UntypedStorage":
            count = data.numel()
        self.save(("storage", typed, str(key), str(data.device), count))
        self.data += b"Q"


_OWN_TENSORS = (Tensor.__reduce_ex__, warptape.nn.Parameter.__reduce_ex__)


def _size(pickler: Pickler, size: Any) -> None:
    pickler._call(_C.Size, (tuple(size),))
    pickler._remember(size)


def _device(pickler: Pickler, device: Any) -> None:
    pickler._call(_C.device, (device.type,) if device.index is None else (device.type, device.index))
    pickler._remember(device)


_CONTAINERS: dict[Any, Callable[[Pickler, Any], None]] = {
    bytes: Pickler._bytes,
    tuple: Pickler._tuple,
    list: Pickler._list,
    dict: Pickler._dict,
    _C.Size: _size,
    _C.device: _device,
}
