"""Ways to train one model on many ranks, over warptape.distributed."""

from . import context, pipeline, shard, tensor
from .model import ParallelModel
from .parallelize import parallelize
from .parameter_server import ParameterServer
from .shard import FSDPModule, MixedPrecisionPolicy, fully_shard
from .tensor import parallelize_module
from .verification import Layout, verify

__all__ = [
    "FSDPModule",
    "Layout",
    "MixedPrecisionPolicy",
    "ParallelModel",
    "ParameterServer",
    "context",
    "fully_shard",
    "parallelize",
    "parallelize_module",
    "pipeline",
    "shard",
    "tensor",
    "verify",
]
