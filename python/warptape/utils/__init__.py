"""Helpers around training: data loading, activation checkpointing, removable hooks."""

from __future__ import annotations

from .._missing import install_getattr as _install_getattr

__all__ = ["checkpoint", "data", "hooks"]

_install_getattr(__name__)  # imports data where it is first named: most of the package's import time
