"""A process that is forked into workers: they are there in milliseconds, since all is imported already.

For models of a repository it is a fresh interpreter, which is started again when it is gone. For modules of
the user's process, which no message could carry, it is a fork of that, made before event loops and threads of
the server are. It does nothing but fork.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from . import worker

_PID = struct.Struct("<q")


class Template:
    """Args:
    modules: by name, as they are now; None: a fresh interpreter without any.
    """

    def __init__(self, modules: Mapping[str, Any] | None = None) -> None:
        self._modules, self.pid = modules, 0
        self._begin()

    def _begin(self) -> None:
        self._socket, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_end:
            if self._modules is None:
                fd = child_end.fileno()
                environment = {**os.environ, "PYTHONSAFEPATH": "1"}  # the working folder is no module path
                command = [sys.executable, "-m", "warptape.serve.template", str(fd)]
                process = subprocess.Popen(command, pass_fds=[fd], env=environment, stdin=subprocess.DEVNULL)
                self.pid, process.returncode = process.pid, 0  # close() waits for it, not Popen
                return
            self.pid = os.fork()
            if self.pid == 0:
                self._socket.close()
                code = 1
                try:
                    _fork_on_demand(child_end, self._modules)
                    code = 0
                finally:
                    os._exit(code)

    def spawn(self, connection: socket.socket) -> int:
        """A worker; its pid. Blocks for some milliseconds, and longer where the interpreter is just started.

        Raises: OSError where the template with the modules is gone.
        """
        try:
            return self._fork(connection)
        except OSError as error:
            if self._modules is not None:
                raise OSError(
                    f"the process that holds the modules is gone ({error}); start the server again"
                ) from error
        self.close()
        self._begin()
        return self._fork(connection)

    def _fork(self, connection: socket.socket) -> int:
        socket.send_fds(self._socket, [b"."], [connection.fileno()])
        answer = self._socket.recv(_PID.size)
        if len(answer) != _PID.size:
            raise OSError("it ended")
        return _PID.unpack(answer)[0]

    def close(self) -> None:
        """Ends it."""
        self._socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _fork_on_demand(control: socket.socket, modules: Mapping[str, Any] | None) -> None:
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


if __name__ == "__main__":
    from . import engine_worker, program_worker  # noqa: F401  what workers need, imported once

    _fork_on_demand(socket.socket(fileno=int(sys.argv[1])), None)
