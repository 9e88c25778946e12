"""Models on several ranks at once: torch.nn.parallel."""

from ..._missing import lookup as _lookup
from ..modules.data_parallel import DataParallel
from .distributed import DistributedDataParallel

__all__ = ["DataParallel", "DistributedDataParallel"]

__getattr__ = _lookup(__name__)
