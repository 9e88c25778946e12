"""Runs scripts under a launcher and finds what they leave behind."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import warptape
from time_limits import seconds

LAUNCHER = [sys.executable, "-m", "warptape.distributed.run"]
PACKAGE = str(Path(warptape.__file__).resolve().parents[1])
SECRET = "a secret for tests, long enough"
_OURS = (
    "WARPTAPE_",
    "TORCHELASTIC_",
    "PET_",
    "OMPI_",
    "PMI_",
    "SLURM_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "PYTHONUNBUFFERED",  # print would write in pieces, and lines of ranks would mix
)


def environ(**more: str) -> dict[str, str]:
    """This process's environment without any launcher's traces, with the package to be found."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(_OURS) and k != "OMP_NUM_THREADS"}
    path = os.pathsep.join([PACKAGE, *filter(None, [clean.get("PYTHONPATH")])])
    return {**clean, "PYTHONPATH": path, **more}


class Job:
    """A started command, by a mark in the environment of everything that comes of it."""

    def __init__(self, command: list[str], **env: str) -> None:
        self.mark = f"mark-{secrets.token_hex(8)}"
        self.process = subprocess.Popen(
            command,
            env=environ(WARPTAPE_TEST_MARK=self.mark, **env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self.process.pid

    def finish(self, limit: float = 30.0) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) when it ended."""
        out, err = self.process.communicate(timeout=seconds(limit))
        return self.process.returncode, out, err

    def left(self) -> list[int]:
        """Processes of this job that still run; the dead that nobody reaped do not."""
        mark = f"WARPTAPE_TEST_MARK={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
        return found


@contextmanager
def started(command: list[str], **env: str) -> Iterator[Job]:
    """A job that is gone afterwards, whatever happens."""
    job = Job(command, **env)
    try:
        yield job
    finally:
        for pid in {*job.left(), *([job.pid] if job.process.poll() is None else [])}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.process.wait()
        for stream in (job.process.stdout, job.process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def kernel() -> Iterator[tuple[Any, Any]]:
    """A notebook's kernel of this Python, ready: (its manager, a client)."""
    pytest.importorskip("ipykernel")
    manager, client = pytest.importorskip("jupyter_client.manager").start_new_kernel(env=environ())
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def launch(*arguments: object, **env: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of our launcher with these arguments; nothing of it may be left."""
    with started([*LAUNCHER, *map(str, arguments)], **env) as job:
        result = job.finish()
        assert job.left() == []
        return result


def until(condition: Callable[[], Any], limit: float = 10.0) -> float:
    """Wait for the condition; the seconds it took. Fails after `limit`."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds(limit), "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - start


def lines(text: str) -> list[Any]:
    """The JSON values printed one a line, whatever else is there."""
    return [json.loads(line) for line in text.splitlines() if line.startswith(("{", "["))]


def free_port() -> int:
    """A TCP port nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
