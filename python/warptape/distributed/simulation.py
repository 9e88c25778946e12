"""The simulated world: N ranks as threads of one process, over the same shared-memory algorithms.

For tests, for notebooks, and to try a parallel plan on a laptop before renting the machines.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from .._C import _distributed as _C
from .._C import _profiler_join
from ..cuda.devices import device_count, is_initialized, synchronize
from . import groups
from .state import peek_state, set_state


class RankFailed(RuntimeError):
    """A rank of a simulated world raised; its exception is the `__cause__`, its traceback in the text.

    `simulate` raises it for the first rank that failed; the others are stopped.
    """


class _Stopped(BaseException):
    """Raised in the threads of ranks that are to end though they wait for nobody."""


GRACE = 0.2  # seconds in which a rank may end by itself once another has failed
PATIENCE = 5.0  # seconds to wait for ranks that are stopped; who sleeps longer is left behind


class _Ranks:
    """What the threads share, and who failed first."""

    def __init__(self, n: int, timeout: timedelta) -> None:
        self.n, self.timeout = n, timeout
        self.store = _C.HashStore()
        self.results: list[Any] = [None] * n
        self.failure: tuple[int, BaseException] | None = None
        self.states: list[Any] = [None] * n
        self.lock = threading.Lock()
        self.at_work: set[int] = set()  # threads in user code
        self.interrupted: set[int] = set()  # of these
        self.running = n
        self.none_left = threading.Event()

    def wait(self, limit: float) -> bool:
        """Whether all ranks end within `limit` seconds. (Not by Thread.join: when a signal interrupts that,
        Python may take the thread for dead.)"""
        return self.none_left.wait(limit)

    def leave(self, ranks: int = 1) -> None:
        """A rank has ended, or will not start.

        Args:
            ranks: how many.
        """
        with self.lock:
            self.running -= ranks
            if self.running <= 0:
                self.none_left.set()

    def stop(self, reason: str) -> None:
        """Ends what ranks wait for, in the store and in groups.

        Args:
            reason: what the waiting ranks' errors say.
        """
        self.store._close(reason)
        for state in self.states:
            for group in list(state.groups.values()) if state else []:
                group._abort(reason)

    def interrupt(self) -> None:
        """Raises _Stopped in the ranks that still run Python code, at their next bytecode."""
        with self.lock:
            for thread in self.at_work:
                self.interrupted.add(thread)
                _raise_in(thread, _Stopped)

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
            self.work(rank, fn, args)
        except _Stopped:
            pass  # on its way when the work was over
        finally:
            try:
                if peek_state() is not None:
                    groups.destroy_process_group()
            finally:
                set_state(None)
                context.leave()
                self.leave()

    def work(self, rank: int, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        thread = threading.get_ident()
        with self.lock:
            self.at_work.add(thread)
        try:
            groups.init_process_group(
                "shm", store=self.store, rank=rank, world_size=self.n, timeout=self.timeout
            )
            self.states[rank] = peek_state()
            _profiler_join()  # a profile of the program sees its ranks
            self.results[rank] = fn(*args)
        except BaseException as error:
            self.fail(rank, error)
        finally:
            with self.lock:
                self.at_work.discard(thread)
            if thread in self.interrupted:
                _receive(_Stopped)  # which would meet the clean-up


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _receive(error: type[BaseException]) -> None:
    """Ends the wait of this thread for an exception that another one may have sent, but that has not come.

    To take it back would leave the interpreter told of an exception that is none: from then on Python 3.11
    goes round for ever in the next call of any thread that has a profile function.
    """
    try:
        _raise_in(threading.get_ident(), error)
        while True:
            pass
    except error:
        pass


def _wait(ranks: _Ranks) -> None:
    """Until all have ended; once one has failed the others have little time left."""
    failed_at = None
    while not ranks.wait(0.05):
        if ranks.failure is not None and failed_at is None:
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE:
            ranks.interrupt()
            ranks.wait(PATIENCE)
            return


def _drop_device_failures() -> None:
    """Of calls between ranks that were given up, of which RankFailed tells, and not who next waits."""
    for device in range(device_count() if is_initialized() else 0):
        with contextlib.suppress(RuntimeError):
            synchronize(device)


def simulate(
    n: int,
    fn: Callable[..., Any],
    *args: Any,
    timeout: timedelta = timedelta(minutes=5),
    threads_per_rank: int = 1,
) -> list[Any]:
    """Runs fn(*args) on n ranks that are threads of this process; returns their results by rank.

    Inside fn, warptape.distributed is initialized and get_rank() tells the ranks apart. Each rank has a
    generator, a default group and modes of its own, and `threads_per_rank` threads for one op. Ctrl-C (in
    a notebook: interrupting the kernel) stops all ranks and raises KeyboardInterrupt.

    Raises: RankFailed when a rank raises: with that rank's traceback, after all others have been stopped.

    >>> torch.distributed.simulate(2, torch.distributed.get_rank)
    [0, 1]
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
        _wait(ranks)
    except BaseException as error:
        ranks.leave(sum(thread.ident is None for thread in threads))
        ranks.stop(f"the simulated world was stopped by {type(error).__name__}")
        ranks.interrupt()
        ranks.wait(PATIENCE)
        raise
    if ranks.failure is not None:
        _drop_device_failures()
        rank, cause = ranks.failure
        raise RankFailed(f"rank {rank} of {n} raised {type(cause).__name__}: {cause}") from cause
    return ranks.results
