"""How the launchers of several nodes meet and agree: node 0's listens, the others connect.

Before anything a peer sends is parsed, it has proven the job's secret:

    host -> guest    32 random bytes H
    guest -> host    32 random bytes G, HMAC-SHA256(secret, "guest" H G)
    host -> guest    HMAC-SHA256(secret, "host" H G), or zeros

Then messages, each a length of 4 bytes (big endian) and a JSON object. A guest sends `join` once and a
`report` after each start; the host sends `wait` (there is no place, or not yet), `start`, `stop`, `again` (a
restart follows) and `end`.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
from typing import Any

NONCE = 32
PROOF = 32
REFUSAL = bytes(PROOF)
MAX_MESSAGE = 1 << 22
HANDSHAKE_SECONDS = 10.0
_LENGTH = struct.Struct(">I")


class RendezvousError(Exception):
    """The nodes did not meet, or not again; the text says what is wrong and where to look."""


class RendezvousTimeoutError(RendezvousError):
    """Too few nodes came, or were left, for longer than the join timeout."""


class RendezvousConnectionError(RendezvousError):
    """Node 0's launcher, at which the nodes meet, is gone or does not answer."""


def proof(secret: str, who: bytes, host_nonce: bytes, guest_nonce: bytes) -> bytes:
    """What shows that one knows the secret, good for these nonces only.

    Args:
        secret: that all hosts share.
        who: the role, so that one's proof is not the other's.
        host_nonce, guest_nonce: random bytes of both sides.
    """
    return hmac.digest(secret.encode(), who + host_nonce + guest_nonce, "sha256")


def worker_secret(secret: str, job: str) -> str:
    """The secret (hex) that the ranks of one job share: other jobs under the same secret are strangers.

    Args:
        secret: that all hosts share.
        job: its name.
    """
    return hmac.digest(secret.encode(), b"workers " + job.encode(), "sha256").hex()


def _message(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except RecursionError:
        raise ValueError("a message is nested too deeply") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ValueError("expected an object with a kind")
    return message


class Channel:
    """A connection to another launcher: messages out, and in through `on_data`.

    Args:
        connection: an open socket, after the handshake.
        keep_alive: seconds between questions to a silent peer, and how many go unanswered.
    """

    def __init__(self, connection: socket.socket, keep_alive: tuple[int, int]) -> None:
        self.socket = connection
        self._received = b""
        interval, attempts = keep_alive
        connection.settimeout(HANDSHAKE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that lost power or network says nothing. The kernels ask and answer, however busy we are.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, interval),
            (socket.TCP_KEEPINTVL, interval),
            (socket.TCP_KEEPCNT, attempts),
            (
                socket.TCP_USER_TIMEOUT,
                min(1000 * interval * attempts, 2**31 - 1),
            ),  # for what was sent and not answered
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message. Raises OSError if the other side is gone.

        Args:
            kind: of the message.
            **fields: what JSON can hold.
        """
        data = json.dumps({"kind": kind, **fields}).encode()
        self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that came since, after the socket became readable; None if the other side is gone.

        Raises: ValueError for what is no message.
        """
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            return None
        if not data:
            return None
        self._received += data
        messages = []
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > MAX_MESSAGE:
                return None
            if len(self._received) < _LENGTH.size + length:
                break
            body = self._received[_LENGTH.size : _LENGTH.size + length]
            self._received = self._received[_LENGTH.size + length :]
            messages.append(_message(body))
        return messages

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self.socket.fileno() < 0

    def close(self) -> None:
        """End the connection."""
        self.socket.close()


class UnauthenticatedPeer:
    """A connection whose peer has yet to prove the secret, at the host: reads no more than the proof.

    Args:
        connection: an open socket.
        secret: that all hosts share.
    """

    def __init__(self, connection: socket.socket, secret: str) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE)
        self._received = b""
        self._send(self._nonce)

    def _send(self, data: bytes) -> None:
        # A fresh connection's send buffer takes this little; a peer that prevents it is not one of ours.
        if self.socket.send(data) != len(data):
            raise OSError("peer takes no data")

    def read(self) -> bool | None:
        """True: it is one of us; False: it is not; None: not all of the proof is there yet."""
        try:
            data = self.socket.recv(NONCE + PROOF - len(self._received))
        except BlockingIOError:
            return None
        except OSError:
            return False
        if not data:
            return False
        self._received += data
        if len(self._received) < NONCE + PROOF:
            return None
        guest, shown = self._received[:NONCE], self._received[NONCE:]
        known = hmac.compare_digest(shown, proof(self._secret, b"guest", self._nonce, guest))
        try:
            self._send(proof(self._secret, b"host", self._nonce, guest) if known else REFUSAL)
        except OSError:
            return False
        return known


def connect(host: str, port: int, secret: str, keep_alive: tuple[int, int]) -> Channel:
    """A guest's proven connection. Raises OSError if nobody (or somebody else) answers, RendezvousError if
    the secrets differ."""
    connection = socket.create_connection((host, port), timeout=3.0)
    try:
        # Where nobody listens, a local port may be connected to itself; then nobody could listen there.
        if connection.getsockname() == connection.getpeername():
            raise ConnectionRefusedError("nobody listens there yet")
        connection.settimeout(HANDSHAKE_SECONDS)
        nonce = _exactly(connection, NONCE)
        own = secrets.token_bytes(NONCE)
        connection.sendall(own + proof(secret, b"guest", nonce, own))
        answer = _exactly(connection, PROOF)
        if not hmac.compare_digest(answer, proof(secret, b"host", nonce, own)):
            raise RendezvousError(
                f"the launcher at {host}:{port} has another secret: set one WARPTAPE_SECRET on all nodes"
            )
        return Channel(connection, keep_alive)
    except BaseException:
        connection.close()
        raise


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the other side closed the connection")
        data += more
    return data


def listen(host: str, port: int) -> socket.socket:
    """Node 0's listening socket: on the loopback interface if `host` is there, else on all.

    Args:
        host: what the command line says.
        port: 0 for any.
    """
    address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    family, loopback = address[0], is_loopback(str(address[4][0])) and is_loopback(host)
    if loopback:
        return socket.create_server(address[4][:2], family=family, backlog=512)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
    return socket.create_server(("", port), backlog=512)


def is_loopback(host: str) -> bool:
    """True for names and addresses that mean this host wherever they are read.

    Args:
        host: a name or an address.
    """
    return host in ("localhost", "::1", "ip6-localhost") or host.startswith("127.")


def is_here(host: str) -> bool:
    """True if `host` is an address of this machine.

    Args:
        host: a name or an address.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
        return True
    except OSError:
        return False


def free_port(host: str) -> int:
    """A TCP port that nobody uses now.

    Args:
        host: an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
