"""Helpers around training: data loading, activation checkpointing, removable hooks."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["checkpoint", "data", "hooks"]


def __getattr__(name: str) -> ModuleType:
    # data is imported where it is first named: it is most of the package's import time.
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
