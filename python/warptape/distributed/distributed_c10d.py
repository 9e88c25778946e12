"""torch.distributed.distributed_c10d: from where libraries import names of torch.distributed, and more."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from .._missing import install_getattr as _install_getattr
from . import *  # noqa: F403
from . import __all__ as _public
from . import get_default_group as _get_default_group
from ._functional_collectives import _group as _resolve_process_group
from ._state import DEFAULT_TIMEOUT as default_pg_timeout
from ._state import GroupMember, resolve, state


def _get_default_store() -> Any:
    """The store of the default group. ValueError before init_process_group()."""
    return state().store


def _rank_not_in_group(group: Any) -> bool:
    """Whether this rank got no handle of the group."""
    return group == GroupMember.NON_GROUP_MEMBER


def _set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
    """How long collectives of a group wait for its other ranks from now on; of the default group for None.

    Raises: ValueError on a rank that is not in the group.
    """
    if _rank_not_in_group(group):
        raise ValueError("Invalid process group specified")
    resolve(group)._set_timeout(timeout)


__all__ = [*_public, "_get_default_group", "_resolve_process_group", "default_pg_timeout"]

_install_getattr(__name__)
