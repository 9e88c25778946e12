"""torch.distributed.fsdp: fully_shard, which is `warptape.parallel.shard`'s."""

from .._missing import lookup as _lookup
from ..parallel.shard import FSDPModule, MixedPrecisionPolicy, UnshardHandle, fully_shard

__all__ = ["FSDPModule", "MixedPrecisionPolicy", "UnshardHandle", "fully_shard"]

__getattr__ = _lookup(__name__)
