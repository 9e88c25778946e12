"""Helpers around training: data loading, activation checkpointing, removable hooks."""

from __future__ import annotations

import os as _os

from .._missing import install_getattr as _install_getattr

__all__ = ["checkpoint", "cmake_prefix_path", "data", "hooks"]

# For find_package(warptape): CMAKE_PREFIX_PATH.
cmake_prefix_path: str = _os.path.join(_os.path.dirname(_os.path.dirname(__file__)), "share", "cmake")

_install_getattr(__name__)  # imports data where it is first named: most of the package's import time
