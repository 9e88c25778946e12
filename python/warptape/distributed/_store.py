"""The stores by their public names, and how each finds its server."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from warptape import _C

_dist: Any = _C._distributed
Store = _dist.Store
HashStore = _dist.HashStore
PrefixStore = _dist.PrefixStore
ServedStore: Any = _dist.ServedStore  # a base class: mypy takes no variable for one
StoreServer = _dist.StoreServer
Endpoint = _dist.Endpoint

DEFAULT_TIMEOUT = timedelta(seconds=300)


def unix_name(*parts: object) -> str:
    """The name of an abstract Unix socket that other users' jobs do not use."""
    return "/".join(["warptape", str(os.geteuid()), *map(str, parts)])


def secret_of_job() -> str:
    """What all ranks of a job over several hosts know: WARPTAPE_SECRET; empty when it is not set."""
    return os.environ.get("WARPTAPE_SECRET", "")


class TCPStore(ServedStore):
    """A store at an address, served by the process with ``is_master=True``.

    With a secret (the argument, or ``WARPTAPE_SECRET``) it is served over TCP, and both sides prove that they
    know the secret. Without one, ``host_name`` must be a loopback host, and the store is a Unix socket named
    by user and port, which no other user and no other host can reach.

    Args:
        host_name: the master's host.
        port: the master's port; 0 on the master takes a free one, see :attr:`port`.
        world_size: how many processes use the store; None if that is not fixed.
        is_master: whether this process serves.
        timeout: for connecting, and for ``get`` and ``wait``.
        wait_for_workers: the master waits until ``world_size`` processes have come.
        secret: instead of ``WARPTAPE_SECRET``.

    Raises:
        DistNetworkError: the address is taken, nobody serves there, or whoever does is not of this job.
        DistStoreError: not all workers came in time.
        ValueError: a host that needs a secret, and there is none; a client's port 0; a world size of 0.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
        *,
        secret: str | None = None,
    ) -> None:
        if multi_tenant or master_listen_fd is not None:
            raise NotImplementedError(
                "TCPStore: multi_tenant and master_listen_fd are not supported; share one TCPStore"
            )
        secret = secret_of_job() if secret is None else secret
        if not secret and not _dist.is_loopback(host_name):
            raise ValueError(
                f"TCPStore: a store on {host_name!r} can be reached over the network, which takes a secret "
                "that all ranks know: set WARPTAPE_SECRET (for example to the output of "
                "`openssl rand -hex 16`) or pass secret=; on one host use 127.0.0.1, which takes none"
            )
        if world_size == 0:
            raise ValueError("TCPStore world size cannot be 0")
        if not (0 if is_master else 1) <= port <= 65535:
            raise ValueError(
                f"TCPStore: expected a port from 1 to 65535{', or 0 for any' * is_master}, got {port}"
            )
        endpoint, server = _endpoint(host_name, port, secret), None
        if is_master:
            endpoint, server = _serve_at(host_name, port, secret)
        super().__init__(endpoint, timeout, server)
        self.host = host_name
        self.port = endpoint.port
        if world_size is not None and wait_for_workers:
            _wait_for_workers(self, world_size, is_master, timeout)

    def __repr__(self) -> str:
        return f"TCPStore({self.host!r}, {self.port})"


def _endpoint(host: str, port: int, secret: str) -> Any:
    name = "" if secret else unix_name("tcp", port)
    return Endpoint(unix_name=name, host=host, port=port, secret=secret)


def _serve_at(host: str, port: int, secret: str) -> tuple[Any, Any]:
    """Endpoint and server. A name has no port of its own, so port 0 is any number that is free."""
    tries = 16 if port == 0 and not secret else 1
    for left in reversed(range(tries)):
        number = port if secret or port else 32768 + secrets.randbelow(28000)
        endpoint = _endpoint(host, number, secret)
        try:
            return endpoint, StoreServer(endpoint)
        except _C.DistNetworkError:
            if not left:
                raise
    raise AssertionError("unreachable")


def _wait_for_workers(store: Any, world_size: int, is_master: bool, timeout: timedelta) -> None:
    """Returns on the master when all have called it, elsewhere at once. Leaves one key, as PyTorch does."""
    came = store.add("init/", 1)
    if came == world_size and not is_master:
        store.set("init/all", b"")
    elif came < world_size and is_master:
        try:
            store.wait(["init/all"], timeout)
        except _C.DistStoreError:
            came = store.add("init/", 0)
            raise _C.DistStoreError(
                f"TCPStore: {came} of {world_size} processes came within {timeout.total_seconds():g} s; "
                "start the others, or pass wait_for_workers=False"
            ) from None
        store.delete_key("init/all")


class FileStore(ServedStore):
    """A store that is found by a file, on several hosts one of a shared file system.

    The first process to come serves, and writes where into the file (readable by its user only); it removes
    the file when its store goes. A file that was left by a process that is gone is used again.

    Args:
        file_name: path of the file.
        world_size: as PyTorch has it; not used.
        timeout: for ``get`` and ``wait``.

    Raises:
        DistNetworkError: the file is another user's, or names a server that cannot be reached.
    """

    def __init__(self, file_name: str, world_size: int = -1, *, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        self.path = os.path.abspath(file_name)
        with _open_locked(self.path, timeout) as file:
            endpoint, server = _read_endpoint(file, self.path), None
            try:
                if endpoint is not None:
                    super().__init__(endpoint, timeout, patient=False)
                    return
            except _C.DistNetworkError as e:
                if not endpoint.unix_name:  # another host's: whether it is gone cannot be seen from here
                    raise _C.DistNetworkError(
                        f"FileStore: the server that {self.path!r} names cannot be reached; if the file is "
                        f"left from another run, remove it ({e})"
                    ) from None
            secret = secrets.token_hex(16)
            endpoint = Endpoint(unix_name("file", secrets.token_hex(8)), secret=secret)
            server = StoreServer(endpoint)
            _write_endpoint(file, endpoint, secret)
        super().__init__(endpoint, timeout, server)
        weakref.finalize(self, _remove, self.path, endpoint.unix_name, os.getpid())

    def __repr__(self) -> str:
        return f"FileStore({self.path!r})"


def _open_locked(path: str, timeout: timedelta) -> TextIO:
    """The file at the path, made if it was not there, for this process alone until it is closed."""
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        file = open(fd, "r+", encoding="utf-8")  # noqa: SIM115
        if os.fstat(fd).st_uid != os.geteuid():
            file.close()
            raise _C.DistNetworkError(
                f"FileStore: {path!r} is another user's, who could pose as the store; choose another file"
            )
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(path), os.fstat(fd)):  # else its server removed it meanwhile
                return file
        file.close()
        if time.monotonic() > deadline:
            raise _C.DistStoreError(f"FileStore: another process keeps {path!r} locked; is it stopped?")
        time.sleep(0.01)


def _here() -> str:
    """What two processes have in common that can meet at a Unix socket: boot and network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')}"


def _read_endpoint(file: TextIO, path: str) -> Any:
    """What the file says, None when it is empty."""
    text = file.read()
    if not text:
        return None
    try:
        e = json.loads(text)
        name = e["unix"] if e["here"] == _here() else ""
        return Endpoint(name, e["host"], e["port"], e["secret"])
    except (ValueError, KeyError, TypeError):
        raise _C.DistNetworkError(
            f"FileStore: {path!r} holds something that no store wrote; choose another file"
        ) from None


def _write_endpoint(file: TextIO, endpoint: Any, secret: str) -> None:
    os.fchmod(file.fileno(), 0o600)
    file.seek(0)
    file.truncate()
    host = socket.gethostname()
    entry = {
        "unix": endpoint.unix_name,
        "here": _here(),
        "host": host,
        "port": endpoint.port,
        "secret": secret,
    }
    file.write(json.dumps(entry))


def _remove(path: str, name: str, pid: int) -> None:
    """Removes the file if it still names our server, and we are not a child of the process that wrote it."""
    if os.getpid() == pid:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if json.loads(Path(path).read_text())["unix"] == name:
                os.unlink(path)
