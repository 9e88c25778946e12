"""Optimizers whose state is spread over ranks: torch.distributed.optim."""

from ..._missing import install_getattr as _install_getattr
from ..._missing import unusable as _unusable
from .post_localSGD_optimizer import PostLocalSGDOptimizer
from .zero import ZeroRedundancyOptimizer

DistributedOptimizer = _unusable(
    "torch.distributed.optim.DistributedOptimizer", "remote procedure calls are not supported"
)

__all__ = ["DistributedOptimizer", "PostLocalSGDOptimizer", "ZeroRedundancyOptimizer"]

_install_getattr(__name__)
