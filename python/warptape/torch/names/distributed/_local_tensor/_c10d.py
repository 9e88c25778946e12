"""torch.distributed._local_tensor._c10d: which ranks a group has, as sizes and strides."""

from __future__ import annotations

from typing import Any

from warptape.distributed.groups import get_process_group_ranks, get_world_size
from warptape.distributed.mesh_layout import _FlatLayout
from warptape.distributed.mesh_layout import _of_ranks as _indices_to_layout

__all__ = ["_indices_to_layout"]


def _prepare_collective_groups(process_group: Any) -> tuple[list[int], list[int], int]:
    """The ranks of a group from 0 on, the first ranks of all groups like it in the job, and its own first.

    Raises:
        AssertionError: the ranks do not rise, or are no grid.
    """
    ranks = get_process_group_ranks(process_group)
    if not ranks or ranks != sorted(ranks):
        raise AssertionError(f"expected rising ranks, got {ranks}")
    own = [rank - ranks[0] for rank in ranks]
    firsts = _FlatLayout(*_indices_to_layout(own)).complement(get_world_size()).all_ranks_from_zero()
    return own, firsts, ranks[0]
