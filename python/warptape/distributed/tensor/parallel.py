"""torch.distributed.tensor.parallel: the styles of `warptape.parallel.tensor`."""

from ..._missing import lookup as _lookup
from ...parallel.tensor import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

__all__ = [
    "ColwiseParallel",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
    "parallelize_module",
]

__getattr__ = _lookup(__name__)
