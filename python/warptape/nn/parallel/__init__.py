"""Models on several ranks at once: torch.nn.parallel."""

from ..._missing import install_getattr as _install_getattr
from ..modules.data_parallel import DataParallel, data_parallel
from .distributed import DistributedDataParallel

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel"]

_install_getattr(__name__)
