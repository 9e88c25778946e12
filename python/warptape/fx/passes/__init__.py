"""Passes over graphs."""

from ..._missing import lookup as _lookup
from . import shape_prop

__all__ = ["shape_prop"]
__getattr__ = _lookup(__name__)
