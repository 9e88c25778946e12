"""What FullyShardedDataParallel is told: torch.distributed.fsdp.api's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any


class ShardingStrategy(Enum):
    """What is split, and for how long wholes stay.

    FULL_SHARD splits parameters, gradients and states; SHARD_GRAD_OP keeps parameters whole from forward to
    backward.
    """

    FULL_SHARD = auto()
    SHARD_GRAD_OP = auto()
    NO_SHARD = auto()
    HYBRID_SHARD = auto()
    _HYBRID_SHARD_ZERO2 = auto()


class BackwardPrefetch(Enum):
    """When the next parameters are gathered in backward.

    It changes nothing: the order of `fully_shard` serves both.
    """

    BACKWARD_PRE = auto()
    BACKWARD_POST = auto()


@dataclass
class MixedPrecision:
    """dtypes of the older class: of wholes, of reduced gradients, of buffers, and what is cast.

    Args:
        param_dtype, reduce_dtype, buffer_dtype: None leaves the dtype as it is.
        keep_low_precision_grads: whether gradients stay in reduce_dtype.
        cast_forward_inputs, cast_root_forward_inputs: whether inputs are cast, of all modules or the root.
    """

    param_dtype: Any = None
    reduce_dtype: Any = None
    buffer_dtype: Any = None
    keep_low_precision_grads: bool = False
    cast_forward_inputs: bool = False
    cast_root_forward_inputs: bool = True
    _module_classes_to_ignore: Sequence[Any] = ()


@dataclass
class CPUOffload:
    """Whether parameters lie on the CPU while they are not used.

    Args:
        offload_params: whether they do.
    """

    offload_params: bool = False


class StateDictType(Enum):
    """What a state_dict has of a sharded parameter.

    FULL is the whole tensor, SHARDED the rank's part with its place, and LOCAL the part as it is.
    """

    FULL_STATE_DICT = auto()
    LOCAL_STATE_DICT = auto()
    SHARDED_STATE_DICT = auto()


class OptimStateKeyType(Enum):
    """What the state of an optimizer is keyed by.

    PARAM_NAME is the parameter's name, and PARAM_ID its number in the parameter groups.
    """

    PARAM_NAME = auto()
    PARAM_ID = auto()


@dataclass
class StateDictConfig:
    """How a state_dict is made.

    Args:
        offload_to_cpu: whether its tensors lie on the CPU.
    """

    offload_to_cpu: bool = False


@dataclass
class FullStateDictConfig(StateDictConfig):
    """Tensors are whole, as in one process; with `rank0_only` the other ranks get an empty dict.

    Args:
        offload_to_cpu: whether its tensors lie on the CPU.
        rank0_only: saves memory of the others.
    """

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
    """How an optimizer's state_dict is made.

    Args:
        offload_to_cpu: whether its tensors lie on the CPU.
    """

    offload_to_cpu: bool = True


@dataclass
class FullOptimStateDictConfig(OptimStateDictConfig):
    """Optimizer states are those of one process, whole.

    Args:
        offload_to_cpu: whether its tensors lie on the CPU.
        rank0_only: saves memory of the others.
    """

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
    """What `state_dict_type` sets: the kind of state dict, and the configurations of model and optimizer.

    Args:
        state_dict_type: whole, split or local.
        state_dict_config, optim_state_dict_config: of the model and of the optimizer.
    """

    state_dict_type: StateDictType
    state_dict_config: StateDictConfig
    optim_state_dict_config: OptimStateDictConfig
