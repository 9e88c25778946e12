"""Switches of the libraries behind the ops, by the names of torch.backends."""

from .._missing import lookup as _lookup
from . import cpu, cuda, cudnn, mps

__getattr__ = _lookup(__name__)
