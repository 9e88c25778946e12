"""Tensors as DLPack capsules, which other libraries take over without a copy."""

from __future__ import annotations

from typing import Any

from .._functions import from_dlpack
from .._tensor import Tensor

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: Tensor) -> Any:
    """A capsule of the tensor's memory, for one consumer."""
    return tensor.__dlpack__()
