"""A client of torchrun's key-value store, as far as ranks on several hosts need it to find rank 0.

Under torchrun MASTER_ADDR:MASTER_PORT belong to the agent, so rank 0 listens on a port of its own and
publishes it there. The wire format is that of PyTorch 2's TCPStore: a byte for the query, then counts, keys
and values, each text with its length as 8 bytes, all in the host's byte order.
"""

from __future__ import annotations

import socket
import struct
import time

from ._environment import Environment

_VALIDATE, _SET, _GET, _WAIT = 0, 1, 3, 6
_MAGIC = 0x3C85F7CE
_MAX_VALUE = 1 << 20


class TorchStore:
    """A connection to the store at host:port; calls raise OSError, TimeoutError after `timeout` seconds."""

    def __init__(self, host: str, port: int, timeout: float = 300.0) -> None:
        end = time.monotonic() + timeout
        while True:
            try:
                left = max(0.1, end - time.monotonic())
                self._socket = socket.create_connection((host, port), timeout=left)
                break
            except OSError as error:
                if time.monotonic() > end:
                    raise ConnectionError(
                        f"torchrun's store at {host}:{port} does not answer: {error}"
                    ) from None
                time.sleep(0.05)
        self._socket.settimeout(timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(struct.pack("=BI", _VALIDATE, _MAGIC))

    def __enter__(self) -> TorchStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def own_host(self) -> str:
        """This host's address as the way to the store shows it."""
        return self._socket.getsockname()[0]

    def set(self, key: str, value: bytes) -> None:
        """Store `value` under `key`."""
        self._socket.sendall(struct.pack("=B", _SET) + _text(key) + _text(value))

    def wait(self, key: str) -> None:
        """Return when somebody has set `key`."""
        self._socket.sendall(struct.pack("=BQ", _WAIT, 1) + _text(key))
        if self._exactly(1) != b"\0":
            raise ConnectionError(f"torchrun's store gave up waiting for {key}")

    def get(self, key: str) -> bytes:
        """The value of `key`, waiting until there is one."""
        self.wait(key)
        self._socket.sendall(struct.pack("=B", _GET) + _text(key))
        (length,) = struct.unpack("=Q", self._exactly(8))
        if length > _MAX_VALUE:
            raise ConnectionError(f"torchrun's store sent {length} bytes for {key}")
        return self._exactly(length)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise ConnectionError("torchrun's store closed the connection")
            data += more
        return data


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("=Q", len(data)) + data


def _key(environment: Environment) -> str:
    return f"/warptape/{environment.job}/{environment.restart}"


def publish_address(environment: Environment, port: int) -> None:
    """Rank 0: tell the others that it listens at `port`."""
    assert environment.agent_store is not None
    host, agent_port = environment.agent_store
    with TorchStore(host, agent_port) as store:
        own = store.own_host
        # On the agent's own host its name may mean a loopback address, which says nothing elsewhere.
        if own.startswith("127.") or own == "::1":
            own = host
        store.set(_key(environment), f"{own} {port}".encode())


def find_address(environment: Environment, timeout: float = 300.0) -> tuple[str, int]:
    """(host, port) that rank 0 published, waiting for it."""
    assert environment.agent_store is not None
    with TorchStore(*environment.agent_store, timeout) as store:
        host, _, port = store.get(_key(environment)).decode().rpartition(" ")
        return host, int(port)
