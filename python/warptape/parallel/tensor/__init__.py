"""Tensor and sequence parallelism: torch.distributed.tensor.parallel's names, over plain tensors."""

from .layers import (
    ColumnParallelEmbedding,
    ColumnParallelLinear,
    ParallelSelfAttention,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from .loss import VocabParallelCrossEntropy, vocab_parallel_cross_entropy
from .placement import ParallelParameter, Partial, Placement, Replicate, Shard
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
