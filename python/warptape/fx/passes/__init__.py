"""Passes over graphs."""

from ..._missing import install_getattr as _install_getattr
from . import graph_drawer, shape_prop

__all__ = ["graph_drawer", "shape_prop"]
_install_getattr(__name__)
