"""Where a worker's output and its error file go."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from typing import IO

from .arguments import Config, UsageError
from .errors import ProcessFailure
from .loop import Loop

STDOUT, STDERR = 1, 2


class RunFolder:
    """`<log-dir>/<id>_<random>/attempt_<n>/<local rank>/{stdout.log,stderr.log,error.json}`, as torchrun's;
    nothing at all where no logs are asked for."""

    def __init__(self, config: Config) -> None:
        self.path: str | None = None
        wanted = config.log_dir or any(config.redirects.values()) or any(config.tee.values())
        if wanted and config.log_dir != os.devnull:
            name = "".join(c if c.isalnum() or c in "-_." else "_" for c in config.run_id)
            try:
                base = config.log_dir or tempfile.mkdtemp(prefix="warptape_")
                os.makedirs(base, exist_ok=True)
                self.path = tempfile.mkdtemp(prefix=f"{name}_", dir=base)
            except OSError as error:
                where = config.log_dir or tempfile.gettempdir()
                raise UsageError(
                    f"--log-dir: no logs can be written to {where}: {error.strerror}; name a folder that can "
                    "be made, or written to"
                ) from None

    def forget(self) -> None:
        """Removes the folder if nothing is in it."""
        if self.path:
            with contextlib.suppress(OSError):
                os.rmdir(self.path)

    def attempt(self, number: int) -> str | None:
        """The folder of one start of all ranks.

        Args:
            number: of the start, from 0.
        """
        return self.path and os.path.join(self.path, f"attempt_{number}")

    def rank(self, attempt: int, local_rank: int) -> str | None:
        """The folder of one rank, made.

        Args:
            attempt: of the start, from 0.
            local_rank: on this host.
        """
        if self.path is None:
            return None
        folder = os.path.join(self.path, f"attempt_{attempt}", str(local_rank))
        os.makedirs(folder, exist_ok=True)
        return folder


class ErrorFile:
    """Takes a worker's account of its failure: error.json in its log folder, else a file in memory that ends
    with the launcher, reached through the launcher's /proc entry."""

    def __init__(self, folder: str | None) -> None:
        self._memory: int | None = None
        if folder:
            self.path = os.path.join(folder, "error.json")
        else:
            self._memory = os.memfd_create("warptape-error")
            self.path = f"/proc/{os.getpid()}/fd/{self._memory}"

    def read(self) -> tuple[float, str, str, bool] | None:
        """(seconds since the epoch, message, traceback, whether it follows from another rank's failure); None
        if nothing was written."""
        try:
            status = os.stat(self.path)
            if status.st_size == 0:
                return None
            with open(self.path, errors="replace") as file:
                return status.st_mtime, *ProcessFailure.parse(file.read(1 << 20))
        except OSError:
            return None

    def close(self) -> None:
        """Forget what is in memory."""
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None


class Tee:
    """Copies a worker's stream to a log file and, line by line with a prefix, to the console.

    Args:
        loop: where events come from.
        path: of the log file.
        console: where lines go.
        prefix: of each line.
    """

    def __init__(self, loop: Loop, path: str, console: IO[bytes], prefix: str) -> None:
        self._loop, self._console, self._prefix = loop, console, prefix.encode()
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        self._line = b""
        self._open = True
        loop.watch(self._read, self._copy)

    def _copy(self) -> bool:
        try:
            data = os.read(self._read, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        self._file.write(data)
        *lines, self._line = (self._line + data).split(b"\n")
        self._show(b"".join(self._prefix + line + b"\n" for line in lines))
        return True

    def _show(self, text: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # a console that is gone ends no job
            self._console.write(text)
            self._console.flush()

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._loop.unwatch(self._read)
            os.close(self._read)
            if self._line:
                self._show(self._prefix + self._line + b"\n")
            self._file.close()

    def close(self) -> None:
        """Copy what is there already, then end: some process that outlived the worker may hold the pipe."""
        while self._open and self._copy():
            pass
        self._end()


class Output:
    """One worker's standard output, error and error file.

    Args:
        config: of the command line.
        loop: where events come from.
        folder: for files; None for none.
        rank, local_rank: in the job and on this host.
    """

    def __init__(self, config: Config, loop: Loop, folder: str | None, rank: int, local_rank: int) -> None:
        self.error = ErrorFile(folder)
        self._tees: list[Tee] = []
        self._files: list[int] = []
        template = os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${role_name}${local_rank}]:")
        self._prefix = template
        for name, value in (("role_name", config.role), ("rank", rank), ("local_rank", local_rank)):
            self._prefix = self._prefix.replace("${" + name + "}", str(value))
        self._shown = config.shown is None or local_rank in config.shown
        tee = config.tee.get(local_rank, 0)
        kept = config.redirects.get(local_rank, 0) | tee

        def target(stream: int, name: str, console: Callable[[], IO[bytes]]) -> int | None:
            if folder and kept & stream:
                path = os.path.join(folder, name)
                if tee & stream and self._shown:
                    self._tees.append(Tee(loop, path, console(), self._prefix))
                    self._files.append(self._tees[-1].write_end)
                else:
                    self._files.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
            elif not self._shown:
                self._files.append(os.open(os.devnull, os.O_WRONLY))
            else:
                return None  # the launcher's own
            return self._files[-1]

        self.stdout = target(STDOUT, "stdout.log", lambda: sys.stdout.buffer)
        self.error_shown = self._shown and not config.redirects.get(local_rank, 0) & ~tee & STDERR
        self.stderr = target(STDERR, "stderr.log", lambda: sys.stderr.buffer)

    def handed_over(self) -> None:
        """Close what only the worker writes to."""
        for fd in self._files:
            os.close(fd)
        self._files.clear()

    def close(self) -> None:
        """The worker and its children are gone: write out what is left."""
        self.handed_over()
        for tee in self._tees:
            tee.close()
        self._tees.clear()
        self.error.close()
