"""torch.distributed.nn: collectives that are recorded."""

from ..._missing import install_getattr as _install_getattr
from . import functional

__all__ = ["functional"]

_install_getattr(__name__)
