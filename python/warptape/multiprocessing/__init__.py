"""torch.multiprocessing: multiprocessing, with queues, pipes and pools that carry tensors by sharing their
memory, and `spawn`, which runs a function in several processes.

Memory is shared through file descriptors without a name, so that nothing stays behind when the processes end,
however they end. Processes started by `spawn` and `start_processes` end when their parent does, also by
kill -9.
"""

from __future__ import annotations

import multiprocessing as _multiprocessing
from multiprocessing import *

from .queue import default_context as _default
from .reductions import init_reductions
from .spawn import (
    ProcessContext,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    spawn,
    start_processes,
)

__all__ = [
    *_multiprocessing.__all__,
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "set_sharing_strategy",
    "spawn",
    "start_processes",
]

init_reductions()


Queue, JoinableQueue, SimpleQueue = _default.Queue, _default.JoinableQueue, _default.SimpleQueue  # type: ignore
Pipe, Pool, get_context = _default.Pipe, _default.Pool, _default.get_context  # type: ignore

_strategy = "file_descriptor"


def get_all_sharing_strategies() -> set[str]:
    """The names that `set_sharing_strategy` takes.

    >>> sorted(torch.multiprocessing.get_all_sharing_strategies())
    ['file_descriptor', 'file_system']
    """
    return {"file_descriptor", "file_system"}


def get_sharing_strategy() -> str:
    """What `set_sharing_strategy` was told last.

    >>> torch.multiprocessing.get_sharing_strategy()
    'file_descriptor'
    """
    return _strategy


def set_sharing_strategy(new_strategy: str) -> None:
    """Takes PyTorch's two names. Memory goes by file descriptors under both: no file ever has a name.

    Raises:
        ValueError: another name.
    """
    global _strategy
    if new_strategy not in get_all_sharing_strategies():
        raise ValueError(
            f"set_sharing_strategy: expected one of {sorted(get_all_sharing_strategies())}, got "
            f"{new_strategy!r}"
        )
    _strategy = new_strategy
