"""Ways to train one model on many ranks, over warptape.distributed."""

from . import pipeline, shard, tensor
from .shard import FSDPModule, MixedPrecisionPolicy, fully_shard
from .tensor import parallelize_module

__all__ = [
    "FSDPModule",
    "MixedPrecisionPolicy",
    "fully_shard",
    "parallelize_module",
    "pipeline",
    "shard",
    "tensor",
]
