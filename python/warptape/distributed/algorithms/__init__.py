"""torch.distributed.algorithms: communication hooks of DistributedDataParallel; and `textbook`."""

from ..._missing import install_getattr as _install_getattr
from .join import Join, Joinable, JoinHook

__all__ = ["Join", "JoinHook", "Joinable"]

_install_getattr(__name__)
