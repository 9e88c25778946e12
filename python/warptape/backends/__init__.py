"""Switches of the libraries behind the ops, by the names of torch.backends."""

from .._missing import install_getattr as _install_getattr
from . import cpu, cuda, cudnn, mps

_install_getattr(__name__)
