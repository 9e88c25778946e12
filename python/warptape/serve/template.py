"""A process that is forked into workers, for modules of the user's process, which no message could carry.

It is made before event loops and threads of the server are, and does nothing but fork.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Mapping
from typing import Any

from . import worker

_PID = struct.Struct("<q")


class Template:
    """Holds modules, in evaluation mode, as they are now.

    Args:
        modules: by name.
    """

    def __init__(self, modules: Mapping[str, Any]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            code = 1
            try:
                _fork_on_demand(theirs, modules)
                code = 0
            finally:
                os._exit(code)
        theirs.close()

    def spawn(self, connection: socket.socket) -> int:
        """A worker with the modules; its pid. Raises: OSError where the template is gone."""
        try:
            socket.send_fds(self._socket, [b"."], [connection.fileno()])
            answer = self._socket.recv(_PID.size)
        except OSError as error:
            raise OSError(f"the process that holds the modules is gone: {error}") from error
        if len(answer) != _PID.size:
            raise OSError("the process that holds the modules is gone; start the server again")
        return _PID.unpack(answer)[0]

    def close(self) -> None:
        """Ends it."""
        self._socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _fork_on_demand(control: socket.socket, modules: Mapping[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers: they leave no zombies
    while True:
        message, fds, _, _ = socket.recv_fds(control, 16, 1)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            try:
                worker.run(socket.socket(fileno=fds[0]), modules)
            finally:
                os._exit(0)
        os.close(fds[0])
        control.send(_PID.pack(pid))
