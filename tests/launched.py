"""Runs scripts under a launcher and finds what they leave behind."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import warptape
from time_limits import seconds

LAUNCHER = [sys.executable, "-m", "warptape.distributed.run"]
PACKAGE = str(Path(warptape.__file__).resolve().parents[1])
SECRET = "a secret for tests, long enough"
# For scripts that have `rank` and say(): the error of a call, on one line with the time that it took.
CAUGHT = """
def caught(call):
    start = time.monotonic()
    try:
        call()
    except dist.DistBackendError as error:
        say(rank, "took", round(time.monotonic() - start, 2), str(error).replace(chr(10), "|"))
    else:
        say(rank, "no error")
"""
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


class Nodes:
    """Starts the launchers of one job, as nodes that meet on the loopback interface."""

    def __init__(self, *flags: str) -> None:
        self.port = free_port()
        self.flags = [*flags, f"--rdzv-endpoint=127.0.0.1:{self.port}"]
        self.stack = ExitStack()

    def start(self, *arguments: object, env: dict[str, str] | None = None) -> Job:
        """One more node."""
        command = [*LAUNCHER, *self.flags, *map(str, arguments)]
        return self.stack.enter_context(started(command, **{"WARPTAPE_SECRET": SECRET, **(env or {})}))

    def knocked(self) -> None:
        """Wait until a node comes to the endpoint at which nobody else listens, and turn it away: it is then
        no longer busy with its imports, and comes again."""
        with socket.create_server(("127.0.0.1", self.port)) as server:
            server.settimeout(seconds(30))
            server.accept()[0].close()

    def listening(self) -> bool:
        """True if some process listens at the endpoint."""
        port = f":{self.port:04X} "
        tables = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        return any(port in line and line.split()[3] == "0A" for line in tables.splitlines())


class Hosts:
    """Network namespaces on one switch, 10.77.0.1 to 10.77.0.4: hosts that share files and nothing else."""

    _made = itertools.count()

    def __init__(self, count: int = 4) -> None:
        # Links of a removed namespace stay for a moment, so each set has names of its own, of 15 characters
        # at most.
        made = next(self._made)
        stem = f"wt{os.getpid() % 100_000}{chr(97 + made % 26)}"
        self.names = [f"warptape-{os.getpid()}-{made}-{n}" for n in range(1, count + 1)]
        self._ends = [f"{stem}v{n}" for n in range(1, count + 1)]
        self._switch = f"{stem}s"

    def __enter__(self) -> Hosts:
        """Make them; the test is skipped where that is not possible."""
        commands = [["link", "add", self._switch, "type", "bridge"], ["link", "set", self._switch, "up"]]
        for n, (name, end) in enumerate(zip(self.names, self._ends, strict=True), start=1):
            commands += [
                ["netns", "add", name],
                ["link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", name],
                ["link", "set", end, "master", self._switch, "up"],
                ["-n", name, "addr", "add", f"10.77.0.{n}/24", "dev", "eth0"],
                ["-n", name, "link", "set", "eth0", "up"],
                ["-n", name, "link", "set", "lo", "up"],
            ]
        for command in commands:
            try:
                done = subprocess.run(["ip", *command], capture_output=True, text=True)
            except FileNotFoundError:
                pytest.skip("there is no `ip` (iproute2)")
            if done.returncode != 0:
                self.__exit__()
                pytest.skip(f"no network namespaces here: ip {' '.join(command)}: {done.stderr.strip()}")
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove them."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", self._switch], capture_output=True)

    def link(self, number: int, state: str) -> None:
        """Take a host's cable out ("down") or plug it in ("up")."""
        subprocess.run(["ip", "link", "set", self._ends[number], state], check=True)


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
    """The JSON values printed one a line, whatever else is there.

    Ranks share the stream: where a line's end was written after the next rank's line, they are side by side.
    """
    found = []
    for line in text.splitlines():
        while line.startswith(("{", "[")):
            value, end = json.JSONDecoder().raw_decode(line)
            found.append(value)
            line = line[end:]
    return found


def free_port() -> int:
    """A TCP port nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
