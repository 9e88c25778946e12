"""Optimizers whose state is spread over ranks: torch.distributed.optim."""

from ..._missing import unusable as _unusable
from .apply_optimizer_in_backward import _apply_optimizer_in_backward, _get_in_backward_optimizers
from .post_localSGD_optimizer import PostLocalSGDOptimizer
from .zero import ZeroRedundancyOptimizer

DistributedOptimizer = _unusable(
    "torch.distributed.optim.DistributedOptimizer", "remote procedure calls are not supported"
)

__all__ = [
    "_apply_optimizer_in_backward",
    "_get_in_backward_optimizers",
    "DistributedOptimizer",
    "PostLocalSGDOptimizer",
    "ZeroRedundancyOptimizer",
]
