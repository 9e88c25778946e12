"""Models on several ranks at once: torch.nn.parallel."""

from ..._missing import lookup as _lookup
from ..modules.data_parallel import DataParallel, data_parallel
from .distributed import DistributedDataParallel

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel"]

__getattr__ = _lookup(__name__)
