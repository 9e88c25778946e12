"""torch.distributed.checkpoint.default_planner: `save` and `load` plan by themselves."""

from __future__ import annotations

__all__ = ["DefaultLoadPlanner", "DefaultSavePlanner"]


class DefaultSavePlanner:
    """How `save` plans anyway: nested dicts are flattened, and what ranks hold alike is written once.

    Args:
        flatten_state_dict, flatten_sharded_tensors: must be true for nested dicts.
        dedup_replicated_tensors, dedup_save_to_lowest_rank, enable_plan_caching: accepted; what ranks hold
            alike is always written once.

    Raises: NotImplementedError where flatten_state_dict is false.
    """

    def __init__(
        self,
        flatten_state_dict: bool = True,
        flatten_sharded_tensors: bool = True,
        dedup_replicated_tensors: bool | None = None,
        dedup_save_to_lowest_rank: bool = False,
        enable_plan_caching: bool = False,
    ) -> None:
        if not flatten_state_dict:
            raise NotImplementedError("DefaultSavePlanner: nested dicts are always flattened")


class DefaultLoadPlanner:
    """How `load` plans anyway; with allow_partial_load what a checkpoint lacks stays as it is.

    Args:
        flatten_state_dict, flatten_sharded_tensors: accepted.
        allow_partial_load: whether names may be missing from the checkpoint.
    """

    def __init__(
        self,
        flatten_state_dict: bool = True,
        flatten_sharded_tensors: bool = True,
        allow_partial_load: bool = False,
    ) -> None:
        self.allow_partial_load = allow_partial_load
