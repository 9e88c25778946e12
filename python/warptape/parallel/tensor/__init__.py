"""Tensor and sequence parallelism: torch.distributed.tensor.parallel's names. Parameters are DTensors."""

from ..dtensor.placement import Partial, Placement, Replicate, Shard
from ..dtensor.tensor import DTensor
from .layers import (
    ColumnParallelEmbedding,
    ColumnParallelLinear,
    ParallelSelfAttention,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from .loss import VocabParallelCrossEntropy, loss_parallel, vocab_parallel_cross_entropy
from .plan import parallelize_module
from .random import split_randomness
from .redistribute import redistribute
from .state import ParameterLayout, full_state_dict, load_full_state_dict, parameter_layouts
from .styles import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    ShardedDropout,
    divide,
)

__all__ = [name for name in dir() if not name.startswith("_")]
