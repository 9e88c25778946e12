"""The pickle of an object, with tensors and names as PyTorch's files have them."""

from __future__ import annotations

import codecs
import copyreg
import io
import pickle
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _C
from ..core import Tensor, offered
from ..core.functions import _find_op
from ..core.interchange import raw_bytes
from ..core.protocols import TapedByValue
from ..core.storage import UntypedStorage, storage_class_of, storage_on
from ..core.wrappers import is_wrapper, reduced
from . import names as _names

if TYPE_CHECKING:
    from warptape import core as wt


class PickledCall(NamedTuple):
    """A call to write in the place of an object."""

    what: Any
    args: tuple[Any, ...]


class Global:
    """A name to write for what has none here."""

    def __init__(self, module: str, name: str) -> None:
        self.place = module, name

    def __call__(self, *args: Any) -> Any:
        """Not here: pickle writes calls of what is callable alone."""
        raise TypeError(f"{'.'.join(self.place)} is a name in a file")


_named = cache(Global)  # a pickle writes one object once
_TENSOR, _TENSOR3 = (Global("torch._utils", f"_rebuild_tensor_v{n}") for n in (2, 3))
_META = Global("torch._utils", "_rebuild_meta_tensor_no_storage")
_PARAMETER, _PARAMETER_WITH_STATE = (
    Global("torch._utils", f"_rebuild_parameter{end}") for end in ("", "_with_state")
)
_WRAPPER = Global("torch._utils", "_rebuild_wrapper_subclass")
_FROM_TYPE = Global("torch._tensor", "_rebuild_from_type_v2")
_SPARSE = Global("torch._utils", "_rebuild_sparse_tensor")
_NESTED, _NESTED_TYPE = (
    Global("torch.nested._internal.nested_tensor", name) for name in ("_rebuild_njt", "NestedTensor")
)
_ORDERED = Global("collections", "OrderedDict")
_LAYOUT = Global("torch.serialization", "_get_layout")
_PLACES = {"_functions": "torch", "_nn": "torch.nn.functional", "_linalg": "torch.linalg"}  # of ops
_OWN_TENSORS = (Tensor.__reduce_ex__, offered("Parameter").__reduce_ex__)


def _state_of(t: Tensor) -> Any:
    """What a tensor's class says its state is; else its attributes, with those in slots beside them."""
    if own := getattr(type(t), "__getstate__", None):
        if own is not getattr(object, "__getstate__", None):  # Python has it from 3.11 on
            return own(t)
    names = copyreg._slotnames(type(t))  # type: ignore[attr-defined]
    if slots := {name: getattr(t, name) for name in names if hasattr(t, name)}:
        return t.__dict__, slots
    return t.__dict__ or None


def _name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return pickle.BINUNICODE + len(data).to_bytes(4, "little") + data


_SMALL = [pickle.BININT1 + bytes((n,)) for n in range(256)]


def _number(n: int) -> bytes:
    if 0 <= n < 256:
        return _SMALL[n]
    if 0 <= n < 1 << 16:
        return pickle.BININT2 + n.to_bytes(2, "little")
    if -(1 << 31) <= n < 1 << 31:
        return pickle.BININT + n.to_bytes(4, "little", signed=True)
    data = pickle.encode_long(n)
    return pickle.LONG1 + bytes((len(data),)) + data


def _numbers(values: Sequence[int]) -> bytes:
    """A tuple of them."""
    data = b"".join(map(_number, values))
    if len(values) < 4:
        return data + (pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)[len(values)]
    return pickle.MARK + data + pickle.TUPLE


_PythonPickler: Any = pickle._Pickler  # the one in C writes no name that is not importable


class Pickler(_PythonPickler):
    """The pickle of one object, of protocol 2; `storages` has the bytes tensors that belong to it."""

    dispatch = dict(_PythonPickler.dispatch)
    view = b""  # of a storage: it is no part of a larger one

    def __init__(self, obj: Any) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, 2)
        self.storages: list[Tensor] = []
        self.dtypes: list[Any] = []  # of the storages
        self.keys: dict[tuple[int, int], tuple[int, Any]] = {}  # (address, bytes) -> key, dtype
        self.known: dict[Any, bytes] = {}  # what gets the name or text again that was written before
        self.dump(obj)

    def records(self, byteorder: bool = True) -> Iterator[tuple[str, Any]]:
        """What an archive has of the object."""
        yield "data.pkl", self.file.getvalue()
        yield ".format_version", b"1"
        yield ".storage_alignment", b"64"
        if byteorder:
            yield "byteorder", b"little"
        for i, data in enumerate(self.storages):
            host = data.cpu()  # lives as long as its bytes are in use
            yield f"data/{i}", raw_bytes(host)
        yield "version", b"3\n"

    # ---- names ----

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """Writes PyTorch's name of an object, or its own. PicklingError where it is not found by that."""
        if isinstance(obj, Global):
            module, short = obj.place
        else:
            name = name or obj.__qualname__
            module = getattr(obj, "__module__", None) or "builtins"
            value: Any = sys.modules.get(module)
            owner = None
            for part in name.split("."):
                owner, value = value, getattr(value, part, None)
            if value is not obj:
                raise pickle.PicklingError(f"Can't pickle {obj!r}: attribute lookup {module}.{name} failed")
            module, short = _names.torch_name(module, name, obj)
            if "." in short:  # a name that protocol 2 cannot write
                self.save_reduce(_named("builtins", "getattr"), (owner, name.rpartition(".")[2]), obj=obj)
                return
        self.write(_name(module, short))
        self.memoize(obj)

    def save_reduce(
        self, func: Callable[..., Any], args: tuple[Any, ...], *rest: Any, obj: Any = None
    ) -> None:
        """Writes what `__reduce_ex__` returned; of an op, PyTorch's name."""
        if func is _find_op and args[0] in _PLACES:
            self.save(_named(_PLACES[args[0]], args[1]))
        else:
            super().save_reduce(func, args, *rest, obj=obj)

    def _bytes(self, obj: Any) -> None:
        self.save_reduce(codecs.encode, (obj.decode("latin-1"), "latin1"), obj=obj)

    def _dtype(self, obj: Any) -> None:
        self.save(_named("torch", obj.__name__))

    dispatch |= {
        Global: save_global,
        types.FunctionType: save_global,
        bytes: _bytes,
        _C.dtype: _dtype,
    }

    # ---- objects ----

    def reducer_override(self, obj: Any) -> Any:
        """What stands for a tensor, and what its arguments are made of."""
        kind = type(obj)
        if kind is PickledCall:
            return tuple(obj)
        if kind is _C.Size:
            return _C.Size, (tuple(obj),)
        if kind is _C.device:
            return _C.device, (obj.type,) if obj.index is None else (obj.type, obj.index)
        if kind is _C.layout:
            return _LAYOUT, (str(obj),)
        if isinstance(obj, Tensor) and kind.__reduce_ex__ in _OWN_TENSORS:
            return self._tensor(obj)
        if getattr(kind, "is_nested", False) is True:
            return _FROM_TYPE, (_NESTED, _NESTED_TYPE, obj.__reduce_ex__(4)[1], {})
        if issubclass(kind, TapedByValue):  # a sparse tensor
            parts = obj.__reduce_ex__(4)[1][1]
            return _SPARSE, (obj.layout, parts)
        return NotImplemented

    # ---- tensors ----

    def _tensor(self, t: Tensor) -> tuple[Any, tuple[Any, ...]]:
        kind, state = type(t), _state_of(t)
        make, args = self._rebuilt(t)
        if kind is offered("Parameter"):
            args = (t.data, t.requires_grad, OrderedDict())
            return (_PARAMETER_WITH_STATE, (*args, state)) if state else (_PARAMETER, args)
        if kind is not Tensor or state:
            return _FROM_TYPE, (make, kind, args, state or {})
        return make, args

    def _rebuilt(self, t: Tensor) -> tuple[Global, tuple[Any, ...]]:
        if is_wrapper(t):
            return _WRAPPER, reduced(t)[1]
        size, stride = tuple(t.shape), t.stride()
        if t.is_meta:
            return _META, (t.dtype, size, stride, t.requires_grad)
        typed = storage_class_of(t.dtype)
        storage = storage_on(typed, _C._storage_bytes(t))
        args: tuple[Any, ...] = (storage, t.storage_offset(), size, stride, t.requires_grad, OrderedDict())
        return (_TENSOR, args) if typed is not UntypedStorage else (_TENSOR3, (*args, t.dtype))

    def _key(self, data: Tensor, dtype: wt.dtype) -> int:
        """The number of a storage, whose bytes lie in a record of their own."""
        place = data.data_ptr(), data.numel()
        key, before = self.keys.get(place, (len(self.storages), dtype))
        if before != dtype:
            raise RuntimeError(
                "Cannot save multiple tensors or storages that view the same data as different types"
            )
        if key == len(self.storages):
            self.storages.append(data)
            self.dtypes.append(dtype)
            if data.numel():
                self.keys[place] = key, dtype
        return key

    def persistent_id(self, obj: Any) -> Any:
        """What stands for a storage."""
        if not isinstance(obj, UntypedStorage):
            return None
        data, dtype = obj._bytes, obj.dtype
        key = self._key(data, dtype)
        name, count = storage_class_of(dtype).__name__, data.numel() // dtype.itemsize
        if name == "UntypedStorage":
            return "storage", _named("torch.storage", name), str(key), str(data.device), data.numel()
        return "storage", _named("torch", name), str(key), str(data.device), count

    # ---- what files have most of, without the general way's twenty calls for each ----

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        """Writes an object, or a reference to it where it was written before."""
        kind = type(obj)
        if kind is str:
            if (before := self.memo.get(id(obj))) is not None:
                self.write(self.get(before[0]))
                return
            self.write(_text(obj))
            self.memoize(obj)
        elif kind is Tensor and id(obj) not in self.memo and not (obj.__dict__ or obj.is_meta):
            typed = storage_class_of(obj.dtype)
            if typed is UntypedStorage:
                super().save(obj)
            else:
                self._save_plain(obj, typed.__name__)
        else:
            super().save(obj, save_persistent_id)

    def _written(self, obj: Any) -> bytes:
        """A name or text, or a reference to it where it was written before."""
        if (known := self.known.get(obj)) is not None:
            return known
        if (before := self.memo.get(id(obj))) is not None:
            return self.known.setdefault(obj, self.get(before[0]))
        at = len(self.memo)
        self.memo[id(obj)] = at, obj
        self.known[obj] = self.get(at)
        return (_text(obj) if isinstance(obj, str) else _name(*obj.place)) + self.put(at)

    def _save_plain(self, t: Tensor, storage: str) -> None:
        """As _rebuilt and persistent_id have it."""
        data, dtype = _C._storage_bytes(t), t.dtype
        parts = (
            self._written(_TENSOR),
            b"((",
            self._written("storage"),
            self._written(_named("torch", storage)),
            _text(str(self._key(data, dtype))),
            self._written("cpu" if t.is_cpu else str(data.device)),
            _number(data.numel() // dtype.itemsize),
            self.view,
            b"tQ",
            _number(t.storage_offset()),
            _numbers(t.shape),
            _numbers(t.stride()),
            pickle.NEWTRUE if t.requires_grad else pickle.NEWFALSE,
            self._written(_ORDERED),
            b")RtR",
        )
        at = len(self.memo)
        self.memo[id(t)] = at, t
        self.write(b"".join(parts) + self.put(at))


class LegacyPickler(Pickler):
    """The object's pickle as files of PyTorch before 1.6 have it."""

    view = pickle.NONE

    def persistent_id(self, obj: Any) -> Any:
        """What stands for a storage; no part of a larger one."""
        key = super().persistent_id(obj)
        return None if key is None else (*key, None)

    def pieces(self) -> Iterator[Any]:
        """The file: see the note in `_read._legacy_storages`."""
        sizes = {"short": 2, "int": 4, "long": 4}
        machine = {"protocol_version": _names.LEGACY_PROTOCOL, "little_endian": True, "type_sizes": sizes}
        for fact in (_names.LEGACY_MAGIC, _names.LEGACY_PROTOCOL, machine):
            yield pickle.dumps(fact, 2)
        yield self.file.getvalue()
        yield pickle.dumps([str(i) for i in range(len(self.storages))], 2)
        for data, dtype in zip(self.storages, self.dtypes):
            yield (data.numel() // dtype.itemsize).to_bytes(8, "little")
            host = data.cpu()
            yield raw_bytes(host)
