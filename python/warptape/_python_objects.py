"""What takes arbitrary Python objects, which a declaration in C++ cannot take."""

from __future__ import annotations

from typing import Any

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
