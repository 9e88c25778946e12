"""torch.distributed.tensor.parallel: the styles of `warptape.parallel.tensor`."""

from ..._missing import install_getattr as _install_getattr
from ..._missing import unusable as _unusable
from ...parallel.tensor import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

__all__ = [
    "ColwiseParallel",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
    "parallelize_module",
]

loss_parallel = _unusable(
    "torch.distributed.tensor.parallel.loss_parallel",
    "use warptape.parallel.tensor.VocabParallelCrossEntropy for logits that are split by the vocabulary",
)

_install_getattr(__name__)
