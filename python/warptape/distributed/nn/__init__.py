"""torch.distributed.nn: collectives that are recorded."""

from ..._missing import lookup as _lookup
from . import functional

__all__ = ["functional"]

__getattr__ = _lookup(__name__)
