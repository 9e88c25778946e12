"""Optimizers whose state is spread over ranks: torch.distributed.optim."""

from ..._missing import lookup as _lookup
from .zero import ZeroRedundancyOptimizer

__all__ = ["ZeroRedundancyOptimizer"]

__getattr__ = _lookup(__name__)
