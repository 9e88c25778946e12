"""Models on several ranks at once: torch.nn.parallel."""

from .distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
