"""torch.distributed.checkpoint.default_planner: `save` and `load` plan by themselves."""

from __future__ import annotations

__all__ = ["DefaultLoadPlanner", "DefaultSavePlanner"]


class DefaultSavePlanner:
    """How `save` plans anyway: nested dicts are flattened, and what ranks hold alike is written once."""

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
    """How `load` plans anyway; with allow_partial_load what a checkpoint lacks stays as it is."""

    def __init__(
        self,
        flatten_state_dict: bool = True,
        flatten_sharded_tensors: bool = True,
        allow_partial_load: bool = False,
    ) -> None:
        self.allow_partial_load = allow_partial_load
