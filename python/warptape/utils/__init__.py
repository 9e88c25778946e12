"""Helpers around training: data loading, activation checkpointing, removable hooks."""

from __future__ import annotations

from .._missing import lookup as _lookup

__all__ = ["checkpoint", "data", "hooks"]

__getattr__ = _lookup(__name__)  # imports data where it is first named: most of the package's import time
