"""torch.distributed.algorithms: communication hooks of DistributedDataParallel; and `textbook`."""

from ..._missing import lookup as _lookup
from .join import Join, Joinable, JoinHook

__all__ = ["Join", "JoinHook", "Joinable"]

__getattr__ = _lookup(__name__)
