"""Functions of functions, and calls of modules without their state."""

from .._missing import lookup as _lookup
from .functional_call import functional_call

__all__ = ["functional_call"]

__getattr__ = _lookup(__name__)
