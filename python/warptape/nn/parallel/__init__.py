"""Models on several ranks at once: torch.nn.parallel."""

from ..._missing import lookup as _lookup
from .distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]

__getattr__ = _lookup(__name__)
