"""What users allow load() to make with weights_only=True."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

allowed: list[tuple[Any, str]] = []  # objects, and the full name that files have for each


def add_safe_globals(safe_globals: Iterable[Any]) -> None:
    """Lets load() make objects of these classes and call these functions with weights_only=True.

    Args:
        safe_globals: classes and functions, or pairs of one and the full name that files have for it.
    """
    added = []
    for item in safe_globals:
        pair = item if isinstance(item, tuple) else (item, f"{item.__module__}.{item.__qualname__}")
        if len(pair) != 2 or not isinstance(pair[1], str):
            raise ValueError(f"add_safe_globals: expected an object, or one and its full name, got {item!r}")
        added.append(pair)
    allowed.extend(added)


def get_safe_globals() -> list[Any]:
    """What add_safe_globals() was given."""
    return [obj for obj, _ in allowed]


def clear_safe_globals() -> None:
    """Forgets what add_safe_globals() was given."""
    allowed.clear()


class safe_globals:
    """Allows what add_safe_globals() does within a `with` block."""

    def __init__(self, safe_globals: Iterable[Any]) -> None:
        self.safe_globals = list(safe_globals)

    def __enter__(self) -> None:
        self._before = list(allowed)
        add_safe_globals(self.safe_globals)

    def __exit__(self, *error: Any) -> None:
        allowed[:] = self._before
