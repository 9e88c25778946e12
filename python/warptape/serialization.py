"""save() and load(): Python objects that hold tensors, in one file.

A pickle of dicts, lists, numbers and tensors. Loading accepts a closed list of types unless told
otherwise, so that a
file from elsewhere cannot run code.
"""

from __future__ import annotations

import collections
import io
import os
import pickle
from typing import IO, Any

from . import _C, _functions
from ._missing import lookup as _lookup

_MAGIC = b"warptape.1\n"
_SAFE = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    ("warptape._functions", "rebuild_tensor"): _functions.rebuild_tensor,
    ("warptape", "Size"): _C.Size,
    ("warptape", "device"): _C.device,
    ("builtins", "set"): set,
    ("builtins", "complex"): complex,
}


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import warptape

        if (module, name) in _SAFE:
            return _SAFE[module, name]
        if module in ("warptape", "warptape._C") and isinstance(getattr(_C, name, None), _C.dtype):
            return getattr(_C, name)
        classes = {
            ("warptape._tensor", "Tensor"): warptape.Tensor,
            ("warptape.nn.parameter", "Parameter"): warptape.nn.Parameter,
        }
        if (module, name) in classes:
            return classes[module, name]
        raise pickle.UnpicklingError(
            f"load: {module}.{name} is not among the types that weights_only=True accepts; "
            "load files that you trust with weights_only=False"
        )


def save(obj: Any, f: str | os.PathLike[str] | IO[bytes], pickle_protocol: int = 4) -> None:
    """Writes obj and the tensors in it to a path or a binary file. Views are written as tensors of
    their own."""
    data = _MAGIC + pickle.dumps(obj, pickle_protocol)
    if hasattr(f, "write"):
        f.write(data)
        return
    with open(f, "wb") as file:
        file.write(data)


def load(
    f: str | os.PathLike[str] | IO[bytes], map_location: Any = None, weights_only: bool = True, **_: Any
) -> Any:
    """Reads what save() wrote.

    Args:
        map_location: a device to move every tensor to.
        weights_only: accept only tensors and Python's plain containers and numbers.

    Raises:
        pickle.UnpicklingError: a truncated file, one of another format, or a type that is not accepted.
        FileNotFoundError: no such file.
    """
    if hasattr(f, "read"):
        data = f.read()
    else:
        with open(f, "rb") as file:
            data = file.read()
    if not data.startswith(_MAGIC):
        raise pickle.UnpicklingError("load: this is not a file that warptape.save() wrote")
    reader = _SafeUnpickler if weights_only else pickle.Unpickler
    try:
        obj = reader(io.BytesIO(data[len(_MAGIC) :])).load()
    except (EOFError, IndexError, KeyError, AttributeError, ValueError, TypeError) as error:
        raise pickle.UnpicklingError(f"load: the file is damaged: {error}") from error
    return obj if map_location is None else _move(obj, map_location)


def _move(obj: Any, device: Any) -> Any:
    if isinstance(obj, _functions.Tensor):
        return obj.to(device)
    if isinstance(obj, dict):
        moved = type(obj)() if type(obj) in (dict, collections.OrderedDict) else obj
        moved.update({k: _move(v, device) for k, v in obj.items()})
        return moved
    if isinstance(obj, list):
        return [_move(v, device) for v in obj]
    if type(obj) is tuple:
        return tuple(_move(v, device) for v in obj)
    return obj


__getattr__ = _lookup(__name__)
