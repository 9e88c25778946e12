"""torch.distributed.fsdp: fully_shard and the older class over it, which are `warptape.parallel.shard`'s."""

from ..._missing import install_getattr as _install_getattr
from ...parallel.shard import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    UnshardHandle,
    fully_shard,
    register_fsdp_forward_method,
)
from ...parallel.shard.config import (
    BackwardPrefetch,
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    MixedPrecision,
    OptimStateDictConfig,
    OptimStateKeyType,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)
from ...parallel.shard.wrapper import FullyShardedDataParallel

__all__ = [name for name in dir() if not name.startswith("_")]

_install_getattr(__name__)
