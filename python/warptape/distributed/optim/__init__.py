"""Optimizers whose state is spread over ranks: torch.distributed.optim."""

from .zero import ZeroRedundancyOptimizer

__all__ = ["ZeroRedundancyOptimizer"]
