"""What FullyShardedDataParallel is told: torch.distributed.fsdp.api's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any


class ShardingStrategy(Enum):
    """What is split, and for how long wholes stay."""

    FULL_SHARD = auto()
    SHARD_GRAD_OP = auto()
    NO_SHARD = auto()
    HYBRID_SHARD = auto()
    _HYBRID_SHARD_ZERO2 = auto()


class BackwardPrefetch(Enum):
    """When the next parameters are put together in backward; fully_shard's order serves both."""

    BACKWARD_PRE = auto()
    BACKWARD_POST = auto()


@dataclass
class MixedPrecision:
    """dtypes of the older class: of wholes, of reduced gradients, of buffers, and what is cast."""

    param_dtype: Any = None
    reduce_dtype: Any = None
    buffer_dtype: Any = None
    keep_low_precision_grads: bool = False
    cast_forward_inputs: bool = False
    cast_root_forward_inputs: bool = True
    _module_classes_to_ignore: Sequence[Any] = ()


@dataclass
class CPUOffload:
    """Whether parameters lie on the CPU while they are not used."""

    offload_params: bool = False


class StateDictType(Enum):
    """Whether a state_dict has wholes, parts by their place, or parts as they are."""

    FULL_STATE_DICT = auto()
    LOCAL_STATE_DICT = auto()
    SHARDED_STATE_DICT = auto()


class OptimStateKeyType(Enum):
    """What an optimizer's state is keyed by."""

    PARAM_NAME = auto()
    PARAM_ID = auto()


@dataclass
class StateDictConfig:
    """How a state_dict is made."""

    offload_to_cpu: bool = False


@dataclass
class FullStateDictConfig(StateDictConfig):
    """Tensors are whole, as in one process; with `rank0_only` the other ranks get an empty dict."""

    rank0_only: bool = False


@dataclass
class LocalStateDictConfig(StateDictConfig):
    """Tensors are the parts that this rank holds."""


@dataclass
class ShardedStateDictConfig(StateDictConfig):
    """Tensors are the parts of this rank, which know their place in the whole."""

    _use_dtensor: bool = False


@dataclass
class OptimStateDictConfig:
    """How an optimizer's state_dict is made."""

    offload_to_cpu: bool = True


@dataclass
class FullOptimStateDictConfig(OptimStateDictConfig):
    """Optimizer states are those of one process, whole."""

    rank0_only: bool = False


@dataclass
class LocalOptimStateDictConfig(OptimStateDictConfig):
    """Tensors are the parts that this rank holds."""

    offload_to_cpu: bool = False


@dataclass
class ShardedOptimStateDictConfig(OptimStateDictConfig):
    """Tensors are the parts of this rank, which know their place in the whole."""

    _use_dtensor: bool = False


@dataclass
class StateDictSettings:
    """What `state_dict_type` sets: the kind of state dict, and the configurations of model and optimizer."""

    state_dict_type: StateDictType
    state_dict_config: StateDictConfig
    optim_state_dict_config: OptimStateDictConfig
