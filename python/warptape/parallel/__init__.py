"""Ways to train one model on many ranks, over warptape.distributed."""

from typing import TYPE_CHECKING

from .._missing import install_getattr as _install_getattr

if TYPE_CHECKING:
    from . import context, pipeline, shard, tensor
    from .model import ParallelModel
    from .parallelize import parallelize
    from .parameter_server import ParameterServer
    from .shard import FSDPModule, MixedPrecisionPolicy, fully_shard, replicate
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
    "replicate",
    "shard",
    "tensor",
    "verify",
]

_LATE = {  # imported when first asked for
    "model": "ParallelModel",
    "parallelize": "parallelize",
    "parameter_server": "ParameterServer",
    "shard": "FSDPModule MixedPrecisionPolicy fully_shard replicate",
    "tensor": "parallelize_module",
    "verification": "Layout verify",
}
_install_getattr(__name__, _LATE)
