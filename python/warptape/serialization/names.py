"""PyTorch's names in files, and what they stand for here."""

from __future__ import annotations

import collections
import copyreg
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import _C
from .._missing import module_name, public_name
from ..core import Tensor, offered
from ..core.storage import UntypedStorage, storage_class
from ..core.wrappers import rebuild_wrapper_subclass
from ._allowed import allowed as _allowed
from ._errors import UnpicklingError

if TYPE_CHECKING:
    from warptape import core as wt

LEGACY_MAGIC, LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of files before PyTorch 1.6

_OLD = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # Python 2's names, which protocol 2 keeps


# ---- what tensors are rebuilt with ----


def _view(
    storage: UntypedStorage, dtype: wt.dtype, offset: int, size: Sequence[int], stride: Sequence[int]
) -> Tensor:
    if not isinstance(storage, UntypedStorage):
        raise UnpicklingError(f"expected a storage, got {type(storage).__name__}")
    begin = storage._bytes.storage_offset() // dtype.itemsize  # of a part of another storage
    return _C._on_storage(storage._bytes, dtype, tuple(size), tuple(stride), begin + offset)


def rebuild_tensor(
    storage: UntypedStorage, offset: int, size: Sequence[int], stride: Sequence[int]
) -> Tensor:
    """A tensor on a storage, as old files of PyTorch describe it.

    Args:
        storage: of the tensor's dtype.
        offset: of the first element, in elements.
        size, stride: one number for each dim.
    """
    return _view(storage, storage.dtype, offset, size, stride)


def rebuild_tensor_v2(
    storage: UntypedStorage,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    grad: bool,
    hooks: Any,
    metadata: Any = None,
) -> Tensor:
    """A tensor on a storage, as of PyTorch 0.4; metadata tells of lazy conjugation and negation."""
    t = _view(storage, storage.dtype, offset, size, stride)
    if metadata and not (isinstance(metadata, dict) and set(metadata) <= {"conj", "neg"}):
        raise UnpicklingError("unknown metadata of a tensor")
    for name in metadata or ():
        t = getattr(t, name)() if metadata[name] else t
    return t.requires_grad_(bool(grad))


def rebuild_tensor_v3(
    storage: UntypedStorage,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    grad: bool,
    hooks: Any,
    dtype: wt.dtype,
    metadata: Any = None,
) -> Tensor:
    """A tensor of a dtype that has no storage class.

    Args:
        storage: the bytes.
        offset: of the first element, in elements.
        size, stride: one number for each dim.
        grad: whether it requires gradients.
        hooks, metadata: not looked at.
        dtype: of the tensor.
    """
    return _view(storage, dtype, offset, size, stride).requires_grad_(bool(grad))


def rebuild_meta_tensor(dtype: wt.dtype, size: Sequence[int], stride: Sequence[int], grad: bool) -> Tensor:
    """A tensor on the meta device, which has no values.

    Args:
        dtype: of the tensor.
        size, stride: one number for each dim.
        grad: whether it requires gradients.
    """
    tensor = _C._functions.empty_strided(tuple(size), tuple(stride), dtype=dtype, device="meta")
    return tensor.requires_grad_(bool(grad))


def rebuild_parameter(data: Any, grad: bool, hooks: object, state: Any = None) -> Any:
    """A Parameter of a tensor.

    Args:
        data: the tensor.
        grad: whether it requires gradients.
        hooks: not looked at.
        state: attributes that were set on it.
    """
    return _with_state(offered("Parameter")(data, bool(grad)), state)


def rebuild_from_type(make: Callable[..., Any], cls: type, args: tuple[Any, ...], state: Any) -> Any:
    """A tensor of another class, with attributes that were set on it."""
    value = make(*args)
    if type(value) is not cls:
        value = value.as_subclass(cls).requires_grad_(value.requires_grad)
    if getattr(cls, "__setstate__", Tensor.__setstate__) is not Tensor.__setstate__:
        value.__setstate__(state)
        return value
    return _with_state(value, state)


def rebuild_sparse(layout: Any, parts: tuple[Any, ...]) -> Any:
    """A sparse tensor, whose indices are checked.

    Args:
        layout: by coordinates, or by compressed rows or columns.
        parts: of the tensor, as its constructor takes them.

    Raises:
        UnpicklingError: another layout.
    """
    if layout is _C.sparse_coo:
        indices, values, size, *coalesced = parts
        return offered("sparse").sparse_coo_tensor(indices, values, size, is_coalesced=coalesced == [True])
    if layout is not _C.sparse_csr and layout is not _C.sparse_csc:
        raise UnpicklingError(
            "only sparse tensors by coordinates or by compressed rows or columns are known here"
        )
    return offered("sparse").sparse_compressed_tensor(*parts, layout=layout)


def rebuild_nested(parts: object) -> Any:
    """A nested tensor of the jagged layout.

    Args:
        parts: a dict of its values and the numbers of its structure.

    Raises:
        UnpicklingError: they are not there.
    """
    tensors = [parts.get(k) for k in ("values", "offsets", "lengths")] if isinstance(parts, dict) else []
    if len(tensors) != 3 or not all(type(t) is Tensor for t in tensors[: 2 + (tensors[2] is not None)]):
        raise UnpicklingError("a nested tensor without its parts")
    return offered("nested").NestedTensor.from_parts(parts)


def rebuild_coded(
    kind: str, shape: Sequence[int], dtype: wt.dtype, held: Any, parameter: bool = False
) -> Any:
    """A tensor in few bits (warptape.ao.quantization), whose parts are checked."""
    pairs = isinstance(held, tuple) and all(isinstance(one, tuple) and len(one) == 2 for one in held)
    if not pairs or not isinstance(shape, tuple):
        raise UnpicklingError("a tensor in few bits without its parts")
    from ..core.coded import rebuild

    try:
        tensor = rebuild(kind, shape, dtype, dict(held))
    except (TypeError, ValueError) as error:
        raise UnpicklingError(str(error)) from error
    return offered("Parameter")(tensor, False) if parameter else tensor


def _with_state(made: Any, state: Any) -> Any:
    if isinstance(state, tuple):  # of __dict__ and slots
        state, slots = state
        names = copyreg._slotnames(type(made))  # type: ignore[attr-defined]
        for name, value in (slots or {}).items():
            if name in names:
                setattr(made, name, value)
            else:
                made.__dict__[name] = value
    made.__dict__.update(state or {})
    return made


# ---- the closed list ----


# Note: objects of a file may be built so that to print, hash or compare them takes forever, or more stack
# than there is. Nothing here does that to one before it knows its type.


def _encode(text: Any, codec: Any = "latin1") -> bytes:
    if type(text) is not str or type(codec) is not str or codec not in ("latin1", "latin-1"):
        raise UnpicklingError("_codecs.encode: expected a str and latin1")
    return text.encode("latin-1")


def _bytearray(text: Any = b"", codec: Any = "latin1") -> bytearray:
    return bytearray(text if type(text) is bytes else _encode(text, codec))  # a number would ask for memory


def _layout(name: Any) -> Any:
    layout = getattr(_C, name.removeprefix("torch."), None) if type(name) is str else None
    if type(layout) is not _C.layout:
        raise UnpicklingError("there is no such layout")  # a name may take forever to print
    return layout


def check_key(key: object) -> Any:
    """Refuses keys that take long to hash, or more stack than there is.

    Args:
        key: of a dict, or a member of a set.

    Returns:
        The key.

    Raises:
        UnpicklingError: it is a slice, or has more than 1000 parts.
    """
    left, rest = 1000, [key]
    while rest:
        item, left = rest.pop(), left - 1
        if left < 0 or isinstance(item, slice):
            raise UnpicklingError("a key that is a slice, or has more than 1000 parts")
        if isinstance(item, tuple | frozenset):
            rest.extend(item)
    return key


def _keyed(make: Callable[..., Any], dicts_only: bool = False) -> Callable[..., Any]:
    """A constructor of a dict or set from items, whose keys are checked; those of a dict have been."""

    def build(items: Iterable[Any] = ()) -> Any:
        if not isinstance(items, dict):
            if type(items) not in (list, tuple) or (dicts_only and items):
                raise UnpicklingError(f"{make.__name__}: cannot be made of {type(items).__name__}")
            for item in items:
                check_key(item[0] if make is collections.OrderedDict else item)
        return make(items)

    return build


class Hint:
    """What PyTorch's compiler notes at the lengths of a nested tensor.

    Files have it; it is read and forgotten.
    """


_REBUILD: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": rebuild_tensor_v2,
    "torch._utils._rebuild_tensor_v3": rebuild_tensor_v3,
    "torch._utils._rebuild_meta_tensor_no_storage": rebuild_meta_tensor,
    "torch._utils._rebuild_parameter": rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": rebuild_parameter,
    "torch._utils._rebuild_sparse_tensor": rebuild_sparse,
    "torch._utils._rebuild_wrapper_subclass": rebuild_wrapper_subclass,
    "torch._tensor._rebuild_from_type_v2": rebuild_from_type,
    "torch.nested._internal.nested_tensor._rebuild_njt": rebuild_nested,
    "torch.serialization._get_layout": _layout,
    "torch.serialization._names.rebuild_coded": rebuild_coded,
}
_PLAIN: dict[str, tuple[Any, Callable[..., Any]]] = {
    "collections.OrderedDict": (collections.OrderedDict, _keyed(collections.OrderedDict)),
    "collections.Counter": (collections.Counter, _keyed(collections.Counter, dicts_only=True)),
    "_codecs.encode": (_encode, _encode),
    "builtins.bytes": (bytes, lambda: b""),
    "builtins.bytearray": (bytearray, _bytearray),
    "builtins.set": (set, _keyed(set)),
    "builtins.frozenset": (frozenset, _keyed(frozenset)),
    "builtins.complex": (complex, lambda real, imag: complex(float(real), float(imag))),
    "builtins.slice": (slice, slice),
    "torch.Size": (_C.Size, lambda sizes: _C.Size(tuple(sizes))),
    "torch.device": (_C.device, _C.device),
    "torch._dynamo.decorators._DimRange": (Hint, Hint),
}
# Of what rebuilds tensors: id of the function -> its first name
_TORCH_NAMES = {id(f): name for name, f in reversed(_REBUILD.items())}
# What a file that is not trusted may call: id of the found object -> what is called in its place
MAKERS: dict[int, Callable[..., Any]] = {id(f): f for f in _REBUILD.values()}
MAKERS.update((id(obj), maker) for obj, maker in _PLAIN.values())


@cache
def known(module: str, name: str) -> Any:
    """What a name on the closed list stands for.

    Args:
        module, name: as a file has them.

    Returns:
        None for a name that is not on the list.
    """
    full = f"{_OLD.get(module, module)}.{name}"
    if full in _REBUILD:
        return _REBUILD[full]
    if full in _PLAIN:
        return _PLAIN[full][0]
    if full in ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.Parameter"):
        return Tensor if name == "Tensor" else offered("Parameter")
    if full == "torch.nested._internal.nested_tensor.NestedTensor":
        return offered("nested").NestedTensor
    if module in ("torch", "torch.storage", "torch.cuda") and name.endswith("Storage"):
        return storage_class(name)
    out = getattr(_C, name, None) if module == "torch" else None
    return out if isinstance(out, _C.dtype) else None


def resolve(module: str, name: str) -> Any:
    """What PyTorch calls module.name: from the module of that path here, or what lies above it.

    Raises: AttributeError where there is none.
    """
    path = module.split(".")[1:]
    while True:
        try:
            out: Any = import_module(".".join(["warptape", *path]))
            for part in name.split("."):
                out = getattr(out, part)
            return out
        except (ImportError, AttributeError):
            if not path:
                raise AttributeError(f"load: warptape has no {module}.{name}") from None
            path.pop()


def torch_name(module: str, name: str, obj: object) -> tuple[str, str]:
    """The name under which a file refers to an object.

    Args:
        module, name: where the object is defined.
        obj: the object.

    Returns:
        Module and name: for objects of this package the shortest public one of PyTorch, else as given.
    """
    if id(obj) in _TORCH_NAMES:
        home, _, short = _TORCH_NAMES[id(obj)].rpartition(".")
        return home, short
    top, *rest = public_name(module).split(".")
    if top not in ("warptape", "torch"):
        return module, name
    path = ["warptape", *rest]
    for count in range(1, len(path) + 1):
        here = sys.modules.get(module_name(".".join(path[1:count])))
        if getattr(here, name, None) is obj:
            return ".".join(["torch", *path[1:count]]), name
    return module, name


# ---- what users allow ----


def allowed(module: str, name: str) -> Any:
    """What a user allowed under a name.

    Args:
        module, name: as a file has them.

    Returns:
        None if nobody did; nothing of the modules sys and os can be allowed.
    """
    full = f"{_OLD.get(module, module)}.{name}"
    if module.split(".")[0] in ("sys", "os", "posix", "nt"):
        return None
    for obj, alias in _allowed:
        # A class of this package has a longer name than files, and under `python -m warptape.torch` torch's.
        if alias == full or (alias.startswith(("warptape.", "torch.")) and full.startswith("torch.")):
            try:
                if alias == full or resolve(module, name) is obj:
                    return obj
            except AttributeError:
                continue
    return None


def is_allowed(obj: object) -> bool:
    """Whether a user allowed an object."""
    return any(obj is each for each, _ in _allowed)
