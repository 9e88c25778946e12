"""Ranges and marks that profilers (Nsight Systems) show beside kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .devices import _cuda

__all__ = ["mark", "range", "range_pop", "range_push"]


def range_push(msg: str) -> int:
    """Opens a range; returns its depth, from 0.

    Args:
        msg: what profilers show.
    """
    return _cuda.range_push(msg)


def range_pop() -> int:
    """Closes the innermost range; returns the depth that it had."""
    return _cuda.range_pop()


def mark(msg: str) -> None:
    """Marks a moment.

    Args:
        msg: what profilers show.
    """
    _cuda.mark(msg)


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """A range around a `with` block or a function; `msg` is formatted with the further arguments.

    Args:
        msg: what profilers show.
        *args, **kwargs: of str.format.
    """
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
