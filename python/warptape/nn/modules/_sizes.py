"""Sizes that a caller gives as one number or as one for each dimension."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def each(value: object, n: int) -> tuple[Any, ...]:
    """One number -> n of them; a sequence -> a tuple."""
    return tuple(value) if isinstance(value, Iterable) else (value,) * n
