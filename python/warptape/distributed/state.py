"""What a rank keeps: its default group and how it joined. Ranks may be threads of one process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .._C import _distributed as _C

if TYPE_CHECKING:  # made in C++
    ProcessGroup = Any
    Work = Any
else:
    ProcessGroup = _C.ProcessGroup
    Work = _C.Work
DEFAULT_TIMEOUT = timedelta(minutes=30)
Group = Any  # ProcessGroup, None (the default group) or GroupMember.NON_GROUP_MEMBER


@dataclass
class RankState:
    """What a rank, a process or a thread of one, knows of its groups."""

    rank: int
    world_size: int
    backend: str  # as the user named it
    backends: tuple[str, str]  # of CPU and CUDA tensors
    store: Any  # served to all ranks
    timeout: timedelta
    world: Any = None  # the default ProcessGroup
    groups: dict[str, Any] = field(default_factory=dict)  # by name
    made: int = 0  # groups, whether this rank belongs to them or not
    made_locally: Counter[str] = field(default_factory=Counter)  # with use_local_synchronization


_states: dict[int, RankState] = {}


def set_state(state: RankState | None) -> None:
    """Sets the state of the calling rank.

    Args:
        state: None once its default group is destroyed.
    """
    if state is None:
        _states.pop(_C._rank_key(), None)
    else:
        _states[_C._rank_key()] = state


def peek_state() -> RankState | None:
    """The state of the calling rank.

    Returns:
        None before `init_process_group`.
    """
    return _states.get(_C._rank_key())


def state() -> RankState:
    """The state of the calling rank.

    Raises:
        ValueError: before `init_process_group`, as in PyTorch.
    """
    out = peek_state()
    if out is None:
        raise ValueError(
            "Default process group has not been initialized, please make sure to call init_process_group."
        )
    return out


class GroupMember:
    """Constants for groups.

    `WORLD` stands for the default group. A rank gets `NON_GROUP_MEMBER` for a group that it is not in.
    """

    WORLD = None
    NON_GROUP_MEMBER = -100


group = GroupMember  # group.WORLD, as older programs spell it


def resolve(group: Group) -> Any:
    """The ProcessGroup that an argument `group` stands for.

    Args:
        group: None for the default one.

    Raises:
        ValueError: this rank is not in it, or there is no job.
        TypeError: it is no group.
    """
    if group is None:
        return state().world
    if group == GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank does not belong to the group that was given")
    if not isinstance(group, _C.ProcessGroup):
        raise TypeError(f"expected a ProcessGroup or None, got {type(group).__name__}")
    return group
