"""torch.multiprocessing: multiprocessing, with queues, pipes and pools that carry tensors by sharing their
memory, and `spawn`, which runs a function in several processes.

Memory is shared through file descriptors without a name, so that nothing stays behind when the processes end,
however they end. Processes started by `spawn` and `start_processes` end when their parent does, also by
kill -9.
"""

from __future__ import annotations

import multiprocessing as _multiprocessing
from collections.abc import Callable as _Callable
from collections.abc import Iterable as _Iterable
from multiprocessing import *
from typing import Any as _Any

from .._missing import lookup as _lookup
from .queue import Connection as _Connection
from .queue import get_context
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

__getattr__ = _lookup(__name__)
init_reductions()


def Queue(maxsize: int = 0) -> _Any:  # type: ignore[no-redef]
    """A queue between processes, of the default context."""
    return get_context().Queue(maxsize)


def JoinableQueue(maxsize: int = 0) -> _Any:  # type: ignore[no-redef]
    """A queue with `task_done` and `join`, of the default context."""
    return get_context().JoinableQueue(maxsize)


def SimpleQueue() -> _Any:  # type: ignore[no-redef]
    """A queue without a buffer, of the default context."""
    return get_context().SimpleQueue()


def Pipe(duplex: bool = True) -> tuple[_Connection, _Connection]:  # type: ignore[no-redef]
    """Two connected ends; without `duplex` the first only receives and the second only sends."""
    context: _Any = get_context()
    return context.Pipe(duplex)


def Pool(  # type: ignore[no-redef]
    processes: int | None = None,
    initializer: _Callable[..., object] | None = None,
    initargs: _Iterable[_Any] = (),
    maxtasksperchild: int | None = None,
) -> _Any:
    """A pool of processes, of the default context."""
    return get_context().Pool(processes, initializer, initargs, maxtasksperchild)


_strategy = "file_descriptor"


def get_all_sharing_strategies() -> set[str]:
    """The names that `set_sharing_strategy` takes."""
    return {"file_descriptor", "file_system"}


def get_sharing_strategy() -> str:
    """What `set_sharing_strategy` was told last."""
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
