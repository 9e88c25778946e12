"""Sharded data parallelism: torch.distributed.fsdp's fully_shard, over plain tensors, and the older class."""

from .api import (
    FSDPModule,
    ReplicateModule,
    UnshardHandle,
    fully_shard,
    register_fsdp_forward_method,
    replicate,
)
from .checks import CPUOffloadPolicy, DataParallelMeshDims, OffloadPolicy
from .group import MixedPrecisionPolicy

__all__ = [
    "CPUOffloadPolicy",
    "DataParallelMeshDims",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "ReplicateModule",
    "UnshardHandle",
    "fully_shard",
    "register_fsdp_forward_method",
    "replicate",
]
