"""Models on several ranks at once: torch.nn.parallel."""

from ..modules.data_parallel import DataParallel, data_parallel
from .distributed import DistributedDataParallel

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel"]
