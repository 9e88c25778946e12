"""Control flow of Python code by tensors, converted to that of graphs: see `convert`."""

from .convert import convert
from .runtime import NotSupportedError
