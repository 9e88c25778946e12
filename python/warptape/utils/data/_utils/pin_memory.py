"""Batches in page-locked memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = ["pin_memory"]


def pin_memory(data: Any, device: Device = None) -> Any:
    """`data` with every tensor in page-locked memory. Objects of other types may bring `pin_memory()`."""
    if isinstance(data, wt.Tensor):
        return data.pin_memory()
    if isinstance(data, Mapping):
        return {key: pin_memory(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(pin_memory(value) for value in data))
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return [pin_memory(value) for value in data]
    return data.pin_memory() if hasattr(data, "pin_memory") else data
