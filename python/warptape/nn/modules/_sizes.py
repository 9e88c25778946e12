"""Sizes that a caller gives as one number or as one for each dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """torch.nn.modules.utils' way to say it: `_pair(3)` is (3, 3)."""
    return lambda value: each(value, n)


_single, _pair, _triple, _quadruple = _ntuple(1), _ntuple(2), _ntuple(3), _ntuple(4)


def each(value: Any, n: int) -> tuple[Any, ...]:
    """One number -> n of them; a sequence -> a tuple."""
    return tuple(value) if isinstance(value, Iterable) else (value,) * n
