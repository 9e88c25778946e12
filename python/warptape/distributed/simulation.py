"""The simulated world: N ranks as threads of one process, over the same shared-memory algorithms.

For tests, for notebooks, and to try a parallel plan on a laptop before renting the machines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from .._C import _distributed as _C
from . import groups
from ._state import peek_state, set_state


class RankFailed(RuntimeError):
    """A rank of a simulated world raised; its exception is the `__cause__`, its traceback in the text."""


class _Ranks:
    """What the threads share, and who failed first."""

    def __init__(self, n: int, timeout: timedelta) -> None:
        self.n, self.timeout = n, timeout
        self.store = _C.HashStore()
        self.results: list[Any] = [None] * n
        self.failure: tuple[int, BaseException] | None = None
        self.states: list[Any] = [None] * n
        self.lock = threading.Lock()

    def stop(self, reason: str) -> None:
        """Ends what ranks wait for, in the store and in groups."""
        self.store._close(reason)
        for state in self.states:
            for group in list(state.groups.values()) if state else []:
                group._abort(reason)

    def fail(self, rank: int, error: BaseException) -> None:
        with self.lock:
            if self.failure is not None:
                return
            self.failure = (rank, error)
        self.stop(f"rank {rank} raised {type(error).__name__}: {error}")

    def run(self, rank: int, threads: int, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        context = _C._Rank(threads)
        context.enter()
        try:
            groups.init_process_group(
                "shm", store=self.store, rank=rank, world_size=self.n, timeout=self.timeout
            )
            self.states[rank] = peek_state()
            self.results[rank] = fn(*args)
        except BaseException as error:
            self.fail(rank, error)
        finally:
            if peek_state() is not None:
                groups.destroy_process_group()
            set_state(None)
            context.leave()


def simulate(
    n: int,
    fn: Callable[..., Any],
    *args: Any,
    timeout: timedelta = timedelta(minutes=5),
    threads_per_rank: int = 1,
) -> list[Any]:
    """Runs fn(*args) on n ranks that are threads of this process; returns their results by rank.

    Inside fn, warptape.distributed is initialized and get_rank() tells the ranks apart. Each rank has a
    generator, a default group and modes of its own, and `threads_per_rank` threads for one op. Ctrl-C stops
    all ranks.

    Raises: RankFailed when a rank raises: with that rank's traceback, after all others have been stopped.
    """
    if n < 1:
        raise ValueError(f"simulate: expected at least one rank, got {n}")
    ranks = _Ranks(n, timeout)
    threads = [
        threading.Thread(
            target=ranks.run, args=(r, threads_per_rank, fn, args), name=f"rank {r}", daemon=True
        )
        for r in range(n)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # a plain join() cannot be interrupted on all platforms
                thread.join(0.05)
    except BaseException as error:
        ranks.stop(f"the simulated world was stopped by {type(error).__name__}")
        for thread in threads:
            if thread.ident is not None:
                thread.join(5.0)
        raise
    if ranks.failure is not None:
        rank, cause = ranks.failure
        raise RankFailed(f"rank {rank} of {n} raised {type(cause).__name__}: {cause}") from cause
    return ranks.results
