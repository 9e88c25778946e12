"""What takes arbitrary Python objects or calls Python functions, which no declaration in C++ can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _C
from ._tensor import Tensor

__all__ = ["typename"]


def typename(obj: Any) -> str:
    """The type's full name: of a tensor its dtype's, as "torch.FloatTensor"."""
    if isinstance(obj, Tensor):
        return obj.type()
    kind = obj if isinstance(obj, type) else type(obj)
    return (
        kind.__qualname__
        if kind.__module__ in ("builtins", "", None)
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _filled(self: Tensor, values: list[Any]) -> Tensor:
    return self.copy_(_C._tensor(values, self.dtype, self.device, False, True).reshape(self.shape))


def apply_(self: Tensor, callable: Callable[[Any], Any]) -> Tensor:
    """Replaces each element by what a Python function makes of it. Slow."""
    return _filled(self, [callable(x) for x in self.reshape(-1).tolist()])


def map_(self: Tensor, tensor: Tensor, callable: Callable[[Any, Any], Any]) -> Tensor:
    """Replaces each element by what a Python function makes of it and of `tensor`'s. Slow."""
    other = tensor.expand(self.shape)
    return _filled(
        self, [callable(x, y) for x, y in zip(self.reshape(-1).tolist(), other.reshape(-1).tolist())]
    )


for _method in (apply_, map_):
    setattr(Tensor, _method.__name__, _method)
