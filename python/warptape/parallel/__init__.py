"""Ways to train one model on many ranks, over warptape.distributed."""

from . import pipeline, tensor
from .tensor import parallelize_module

__all__ = ["parallelize_module", "pipeline", "tensor"]
