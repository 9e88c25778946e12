"""Whether `einsum` asks the package opt_einsum for the order of its products: torch.backends.opt_einsum.

`torch.einsum` finds its order itself and never asks; the settings are kept for programs that read them.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

__all__ = ["flags", "get_opt_einsum", "is_available", "set_flags"]

_STRATEGIES = ("auto", "greedy", "optimal", "branch-all", "branch-1", "branch-2")


def is_available() -> bool:
    """Whether the package opt_einsum is installed."""
    return importlib.util.find_spec("opt_einsum") is not None


def get_opt_einsum() -> Any:
    """The package opt_einsum, or None."""
    return importlib.import_module("opt_einsum") if is_available() else None


enabled: bool = is_available()
strategy: str | None = "auto" if enabled else None


def set_flags(_enabled: bool | None = None, _strategy: str | None = None) -> tuple[bool, str | None]:
    """Sets `enabled` and `strategy`, and returns what they were.

    Raises:
        ValueError: opt_einsum is not installed, or another strategy than its own.
    """
    global enabled, strategy
    before = enabled, strategy
    if _enabled is not None:
        if _enabled and not is_available():
            raise ValueError(
                "set_flags: opt_einsum is not installed, so it cannot be enabled: pip install opt_einsum"
            )
        enabled = bool(_enabled)
    if _strategy is not None:
        if _strategy not in _STRATEGIES:
            raise ValueError(f"set_flags: expected a strategy of {_STRATEGIES}, got {_strategy!r}")
        if not enabled:
            raise ValueError("set_flags: a strategy needs opt_einsum to be enabled")
        strategy = _strategy
    return before


@contextlib.contextmanager
def flags(enabled: bool | None = None, strategy: str | None = None) -> Iterator[None]:
    """`set_flags` within a `with`.

    Args:
        enabled: whether the package orders products.
        strategy: as "greedy" or "optimal".
    """
    before = set_flags(enabled, strategy)
    try:
        yield
    finally:
        globals().update(zip(("enabled", "strategy"), before, strict=True))
