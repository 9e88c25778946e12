"""Runs a function in several processes that share one fate: see `spawn`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from .lifetime import die_with_parent, watch_parent

__all__ = [
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "spawn",
    "start_processes",
]

_GRACE = 30.0  # seconds from SIGTERM to SIGKILL, as PyTorch's
_MAX_TEXT = 60_000  # bytes; a pipe takes 65,536


class ProcessException(Exception):
    """A process of a `ProcessContext` failed; `error_index` and `error_pid` say which.

    Args:
        msg: the text.
        error_index, error_pid: of the process.
    """

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.error_pid = msg, error_index, error_pid

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid)


class ProcessRaisedException(ProcessException):
    """The function raised; the text has its traceback."""


class ProcessExitedException(ProcessException):
    """The process was killed (`signal_name`) or exited with `exit_code`.

    Args:
        msg: the text.
        error_index, error_pid: of the process.
        exit_code: negative for a signal.
        signal_name: None for none.
    """

    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name)


def _child(fn: Callable[..., Any], index: int, args: Sequence[Any], errors: Any, parent: int | None) -> None:
    if parent is not None:
        die_with_parent(parent)
    watch_parent()
    try:
        fn(index, *args)
    except KeyboardInterrupt:
        pass  # Ctrl-C reaches every process of the terminal; the parent tells of it
    except Exception:
        # The parent reads after this process ended, so the text must fit into the pipe.
        errors.send_bytes(traceback.format_exc().encode(errors="replace")[-_MAX_TEXT:])
        raise SystemExit(1) from None


class ProcessContext:
    """Processes that `start_processes` started and did not join.

    Args:
        processes: that were started.
        errors: pipes that bring tracebacks.
    """

    def __init__(self, processes: list[BaseProcess], errors: list[connection.Connection]) -> None:
        self.processes = processes
        self._errors = errors
        self.sentinels = {process.sentinel: index for index, process in enumerate(processes)}

    def pids(self) -> list[int]:
        """The process ids, by index."""
        return [process.pid or 0 for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until all processes ended or one failed, at most `timeout` seconds; True if all ended well.

        When one fails, the others are ended: after `grace_period` seconds (None: at once) by SIGTERM, and
        after as long (None: 30 s) by SIGKILL. Raises ProcessRaisedException or ProcessExitedException.
        """
        if not self.sentinels:
            return True
        ready = connection.wait(list(self.sentinels), timeout=timeout)
        failed = None
        for sentinel in ready:
            index = self.sentinels.pop(sentinel)  # type: ignore[arg-type]
            self.processes[index].join()
            if self.processes[index].exitcode != 0 and failed is None:
                failed = index
        if failed is None:
            return not self.sentinels
        if grace_period is not None:
            self._wait(grace_period)
        for process in self.processes:
            if process.is_alive():
                process.terminate()
        self._wait(_GRACE if grace_period is None else grace_period)
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
        self.sentinels.clear()
        raise self._exception(failed)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))

    def _exception(self, index: int) -> ProcessException:
        process = self.processes[index]
        pid, code = process.pid or 0, process.exitcode or 0
        try:
            # No text and no end either: a process that it started still holds the pipe.
            errors = self._errors[index]
            text = errors.recv_bytes().decode(errors="replace") if errors.poll() else None
        except EOFError:
            text = None
        if text is not None:
            message = f"\n\n-- Process {index} terminated with the following error:\n"
            return ProcessRaisedException(message + text, index, pid)
        if code >= 0:
            message = f"process {index} terminated with exit code {code}"
            return ProcessExitedException(message, index, pid, code)
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"<Unknown signal {-code}>"
        message = f"process {index} terminated with signal {name}"
        return ProcessExitedException(message, index, pid, code, name)


def start_processes(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Run `fn(i, *args)` in `nprocs` processes, i from 0; with `join` wait for them, else return the context.

    If one fails, the others are ended and the exception of `ProcessContext.join` is raised. All of them die
    with this process. With "spawn" and "forkserver", `fn` must be a function of a module's top level.
    """
    context: Any = multiprocessing.get_context(start_method)
    # The kernel's signal follows the thread that forks, and a fork server is a process in between.
    own = threading.current_thread() is threading.main_thread() and start_method != "forkserver"
    processes, errors = [], []
    for index in range(nprocs):
        receive, send = context.Pipe(duplex=False)
        arguments = (fn, index, tuple(args), send, os.getpid() if own else None)
        process = context.Process(target=_child, args=arguments, daemon=daemon)
        process.start()
        send.close()
        processes.append(process)
        errors.append(receive)
    result = ProcessContext(processes, errors)
    if not join:
        return result
    while not result.join():
        pass
    return None


spawn = start_processes  # the name that most scripts use
