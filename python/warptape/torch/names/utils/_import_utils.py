"""What torch.utils._import_utils tells libraries and tests: which modules could be imported."""

from __future__ import annotations

import functools
import importlib.util


def _check_module_exists(name: str) -> bool:
    """Whether there is a module `name`; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # of a parent
        return False


@functools.lru_cache
def dill_available() -> bool:
    """Whether dill can be imported."""
    return _check_module_exists("dill")


@functools.lru_cache
def import_dill() -> object | None:
    """The module dill, or None."""
    return importlib.import_module("dill") if dill_available() else None
