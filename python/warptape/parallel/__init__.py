"""Ways to train one model on many ranks, over warptape.distributed."""

from . import pipeline, shard, tensor
from .shard import FSDPModule, MixedPrecisionPolicy, fully_shard
from .tensor import parallelize_module
from .verification import Layout, verify

__all__ = [
    "FSDPModule",
    "Layout",
    "MixedPrecisionPolicy",
    "fully_shard",
    "parallelize_module",
    "pipeline",
    "shard",
    "tensor",
    "verify",
]
