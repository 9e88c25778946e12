"""Ties a process's life to its parent's, so that `kill -9` of the parent leaves nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from multiprocessing import connection, parent_process

# Looked up before any fork: loading a library in a fork of a threaded process may deadlock.
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with_parent(parent: int) -> None:
    """Ask the kernel to send SIGKILL when the thread that started this process ends.

    `parent` is the process id the caller had before it forked: if it is gone already, the signal would never
    come, and this process ends at once. Only for processes forked from a thread that outlives them, such as
    the main thread. The request lasts through exec, not through fork.

    Raises OSError where the kernel refuses.
    """
    if _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def set_process_name(name: str) -> None:
    """Give this process the name (at most 15 bytes) that ps and top show."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def watch_parent() -> None:
    """Kill this process, started by `multiprocessing`, when its parent is gone.

    A thread waits for the parent's end, and for the end-of-file on the pipe that multiprocessing keeps to it,
    which other processes may have inherited. Unlike
    `die_with_parent` it holds for every start method and for parents that start processes from a thread that
    ends, but it cannot run while C code holds the interpreter's lock: use both where both apply.
    """
    parent = parent_process()
    if parent is None:
        return
    ends: list[int] = [parent.sentinel]
    with contextlib.suppress(OSError):  # gone already, or a kernel before 5.3
        ends.append(os.pidfd_open(parent.pid or 0))

    def wait() -> None:
        connection.wait(ends)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="warptape-parent", daemon=True).start()
