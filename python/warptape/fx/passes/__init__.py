"""Passes over graphs."""

from ..._missing import lookup as _lookup
from . import graph_drawer, shape_prop

__all__ = ["graph_drawer", "shape_prop"]
__getattr__ = _lookup(__name__)
