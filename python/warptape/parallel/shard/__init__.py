"""Sharded data parallelism: torch.distributed.fsdp's fully_shard, over plain tensors."""

from .api import FSDPModule, UnshardHandle, fully_shard
from .group import MixedPrecisionPolicy

__all__ = ["FSDPModule", "MixedPrecisionPolicy", "UnshardHandle", "fully_shard"]
