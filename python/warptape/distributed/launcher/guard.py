"""A process that ends the workers' process groups when the launcher is gone, however it went.

The kernel kills each worker when the launcher dies (`die_with_parent`), but the request does not pass to
what the worker forks: DataLoader workers, spawned processes, a shell's children. All of those are in the
worker's process group, so the guard kills groups. It learns of the launcher's death by the end-of-file on a
pipe of which only the launcher holds the write end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct

from ...multiprocessing.lifetime import set_process_name

_ENTRY = struct.Struct("=i")  # a process group to watch; negative: forget it


class Guard:
    """Starts the guard process; `watch` and `forget` name the groups it kills if the launcher dies.

    It survives whatever ends the launcher, as SIGKILL, and sees it by the end of a pipe.
    """

    def __init__(self) -> None:
        read, self._pipe = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._pipe)
                _guard(read)
            finally:
                os._exit(0)
        os.close(read)

    def watch(self, group: int) -> None:
        """Kill process group `group` if the launcher dies.

        Args:
            group: its number.
        """
        os.write(self._pipe, _ENTRY.pack(group))

    def forget(self, group: int) -> None:
        """Leave `group` alone: it is empty, and its number may be given to others.

        Args:
            group: its number.
        """
        os.write(self._pipe, _ENTRY.pack(-group))

    def close(self) -> None:
        """End the guard; what it still watches is killed."""
        os.close(self._pipe)
        os.waitpid(self._pid, 0)


def _guard(pipe: int) -> None:
    os.setsid()  # a signal to the launcher's group, or Ctrl-C in its terminal, is not for the guard
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    set_process_name("warptape-guard")
    # Whoever reads the launcher's output waits until the last holder of it is gone: keep the pipe only.
    keep = os.dup2(pipe, 3)
    os.closerange(4, min(os.sysconf("SC_OPEN_MAX"), 65536))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    groups: set[int] = set()
    while True:
        data = os.read(keep, 64 * _ENTRY.size)  # entries are written whole: smaller than PIPE_BUF
        if not data:
            break
        for (group,) in _ENTRY.iter_unpack(data):
            if group > 0:
                groups.add(group)
            else:
                groups.discard(-group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
