"""torch.distributed.distributed_c10d: from where libraries import names of torch.distributed, and more."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from warptape.distributed import *  # noqa: F403
from warptape.distributed import __all__ as _public
from warptape.distributed import get_default_group as _get_default_group
from warptape.distributed.collectives import _coalescing_manager, _CoalescingManager
from warptape.distributed.state import DEFAULT_TIMEOUT as default_pg_timeout
from warptape.distributed.state import GroupMember, resolve
from warptape.distributed.state import state as _state

from ._functional_collectives import _group as _resolve_process_group

if TYPE_CHECKING:
    from warptape.distributed.state import Group


def _get_default_store() -> Any:
    """The store of the default group. ValueError before init_process_group()."""
    return _state().store


def _rank_not_in_group(group: Group) -> bool:
    """Whether this rank got no handle of the group."""
    return group == GroupMember.NON_GROUP_MEMBER


def _set_pg_timeout(timeout: timedelta, group: Group = None) -> None:
    """How long collectives of a group wait for its other ranks from now on; of the default group for None.

    Raises: ValueError on a rank that is not in the group.
    """
    if _rank_not_in_group(group):
        raise ValueError("Invalid process group specified")
    resolve(group)._set_timeout(timeout)


__all__ = [
    *_public,
    "_CoalescingManager",
    "_coalescing_manager",
    "_get_default_group",
    "_resolve_process_group",
    "default_pg_timeout",
]
