"""torch.ops.aten: the ops under the names that PyTorch's dispatcher gives them.

`torch.ops.aten.add` calls the function or method `add`, and each of its overloads, as `aten.add.Tensor`, is
an object of its own that does the same: which overload it is follows from the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import _C
from ._tensor import Tensor

__all__ = ["Aten", "OpOverload", "OpOverloadPacket"]


def _to_copy(self: Tensor, *, dtype: Any = None, device: Any = None, **more: Any) -> Tensor:
    return self.to(device=device or self.device, dtype=dtype or self.dtype, copy=True)


def _slice(self: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return self[(slice(None),) * (dim % self.ndim) + (slice(start, end, step),)]


def _index(self: Tensor, indices: Any) -> Any:
    return self[tuple(slice(None) if i is None else i for i in indices)]


# Those that are not functions or methods by that name.
_OTHERS: dict[str, Callable[..., Any]] = {
    "_to_copy": _to_copy,
    "alias": lambda self: self.view_as(self),
    "slice": _slice,
    "index": _index,
    "_pin_memory": lambda self, device=None: self.pin_memory(),
    "_sparse_addmm": lambda *args, **kwargs: _sparse("addmm")(*args, **kwargs),
    "_sparse_mm_reduce_impl": lambda *args: _sparse("mm")(*args),
}


def _sparse(name: str) -> Any:
    return getattr(__import__("warptape.sparse").sparse, name)


class OpOverload:
    """aten.name.overload, called as the op."""

    def __init__(self, packet: OpOverloadPacket, overload: str) -> None:
        self.overloadpacket, self._overloadname = packet, overload
        self.__name__, self.namespace = f"{packet.__name__}.{overload}", "aten"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.overloadpacket(*args, **kwargs)

    def name(self) -> str:
        """As "aten::add.Tensor"."""
        return f"aten::{self.__name__}".removesuffix(".default")

    def __repr__(self) -> str:
        return f"<OpOverload(op='aten.{self.overloadpacket.__name__}', overload='{self._overloadname}')>"


class OpOverloadPacket:
    """aten.name, called as the op; its attributes are its overloads."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.__name__, self._function = name, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __getattr__(self, overload: str) -> OpOverload:
        if overload.startswith("__"):
            raise AttributeError(overload)
        made = OpOverload(self, overload)
        setattr(self, overload, made)
        return made

    def __repr__(self) -> str:
        return f"<OpOverloadPacket(op='aten.{self.__name__}')>"


class Aten(ModuleType):
    """The namespace: ops appear when they are named. AttributeError for what is not here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _OTHERS.get(name)
        for place in (_C._functions, _C._nn, _C._linalg, _C._special, _C._fft, _C.TensorBase):
            found = found or vars(place).get(name)
        if not callable(found):
            raise AttributeError(f"warptape has no torch.ops.aten.{name} yet")
        packet = OpOverloadPacket(name, found)
        setattr(self, name, packet)
        return packet
