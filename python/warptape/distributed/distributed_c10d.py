"""torch.distributed.distributed_c10d: from where libraries import names of torch.distributed, and more."""

from __future__ import annotations

from typing import Any

from .._missing import install_getattr as _install_getattr
from . import *  # noqa: F403
from . import __all__ as _public
from . import get_default_group as _get_default_group
from ._functional_collectives import _group as _resolve_process_group
from ._state import DEFAULT_TIMEOUT as default_pg_timeout
from ._state import GroupMember, state


def _get_default_store() -> Any:
    """The store of the default group. ValueError before init_process_group()."""
    return state().store


def _rank_not_in_group(group: Any) -> bool:
    """Whether this rank got no handle of the group."""
    return group == GroupMember.NON_GROUP_MEMBER


__all__ = [*_public, "_get_default_group", "_resolve_process_group", "default_pg_timeout"]

_install_getattr(__name__)
