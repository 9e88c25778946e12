"""Stores whose peers are strangers, silent, slow, stopped or dead."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import time_limits
from store_tools import HOST, SECRET, Child, client, counts, master, ms, no_secret, nothing_left
from warptape import _C
from warptape.distributed._store import Endpoint, ServedStore, StoreServer, TCPStore, unix_name

__all__ = ["no_secret", "nothing_left"]  # fixtures of every test here

MAGIC = b"warptape store 1"
SET, GET, SIZE = 0, 1, 7


def knock(store: TCPStore) -> socket.socket:
    return socket.create_connection((HOST, store.port), timeout=10)


def take(s: socket.socket, n: int) -> bytes:
    out = b""
    while len(out) < n and (got := s.recv(n - len(out))):
        out += got
    return out


def shake_hands(s: socket.socket, secret: str = SECRET) -> bool:
    """The client's side of the handshake, written from its description."""
    greeting, nonce = take(s, 48), os.urandom(32)
    assert greeting.startswith(MAGIC)
    both = greeting[16:] + nonce
    s.sendall(MAGIC + nonce + hmac.digest(secret.encode(), b"client" + both, hashlib.sha256))
    return take(s, 32) == hmac.digest(secret.encode(), b"server" + both, hashlib.sha256)


def packed(code: int, *texts: bytes, number: int = 0, file: int = 0) -> bytes:
    body = struct.pack("<BBq", code, file, number) + b"".join(struct.pack("<I", len(t)) + t for t in texts)
    return struct.pack("<I", len(body)) + body


def is_closed(s: socket.socket) -> bool:
    """Whether the other end closes, after what it may still say."""
    with contextlib.suppress(ConnectionError):
        while s.recv(1 << 16):
            pass
    return True


# ---- strangers ----


def test_the_protocol_is_as_described() -> None:
    store = master(SECRET)
    with knock(store) as s:
        assert shake_hands(s)
        s.sendall(packed(SET, b"k", b"v"))
        assert take(s, 14) == packed(0)
        s.sendall(packed(GET, b"k", number=1000))
        assert take(s, 19) == packed(0, b"v")
    with knock(store) as s:
        assert not shake_hands(s, "another") and is_closed(s)
    assert store.get("k") == b"v"


BAD = {
    "oversize": struct.pack("<I", (64 << 20) + 1),
    "unknown code": packed(200),
    "no key": packed(GET),
    "text beyond the end": struct.pack("<I", 14) + struct.pack("<BBqI", GET, 0, 0, 1 << 31),
    "nothing in it": struct.pack("<I", 0),
    "a file that is none": packed(8, b"k", file=1),
    "a second request before the answer": packed(GET, b"never", number=60_000) * 2,
    "a rank that is none": packed(10, number=-1),
}


@pytest.mark.parametrize("message", BAD.values(), ids=BAD.keys())
def test_broken_messages(message: bytes) -> None:
    store = master(SECRET)
    with knock(store) as s:
        assert shake_hands(s)
        s.sendall(message)
        assert is_closed(s)
    store.set("k", "v")
    assert store.num_keys() == 1


def test_pieces_of_messages() -> None:
    store = master(SECRET)
    with knock(store) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert shake_hands(s)
        for byte in packed(SET, b"k", b"v"):
            s.sendall(bytes([byte]))
            time.sleep(0.001)
        assert take(s, 14) == packed(0)
    assert store.get("k") == b"v"


def test_ten_thousand_strangers() -> None:
    """None of them executes anything, few are kept, and those of the job are served meanwhile."""
    store = master(SECRET)
    before = counts()
    # What would set a key if anything but a proof were read.
    garbage = [b"GET / HTTP/1.1\r\n\r\n" * 9, packed(SET, b"k", b"v") * 9, MAGIC + os.urandom(64), b""]
    kept: list[socket.socket] = []
    late = 0.0
    for i in range(10_000):
        s = knock(store)
        with contextlib.suppress(OSError):
            s.send(garbage[i % 4])
        kept.append(s)
        if len(kept) == 600:
            assert counts()[0] - before[0] <= len(kept) + 256 + 8
            start = time.monotonic()
            store.add("n", 1)
            late = max(late, time.monotonic() - start)
            for old in kept:
                old.close()
            kept.clear()
    assert client(store, SECRET).get("n") == b"16" and late < time_limits.seconds(0.5)
    for old in kept:
        old.close()
    assert store.num_keys() == 1


def test_silent_strangers_go_after_five_seconds() -> None:
    store = master(SECRET)
    start = time.monotonic()
    with knock(store) as silent, knock(store) as half:
        half.sendall(MAGIC + b"x" * 20)
        other = client(store, SECRET)
        other.set("k", "v")
        assert store.get("k") == b"v" and time.monotonic() - start < time_limits.seconds(1)
        assert is_closed(silent) and is_closed(half)
        assert 4.5 < time.monotonic() - start < time_limits.seconds(7)


def test_slow_reader_holds_up_nobody() -> None:
    store = master(SECRET)
    value = b"x" * (30 << 20)
    store.set("large", value)
    with knock(store) as slow:
        assert shake_hands(slow)
        slow.sendall(packed(GET, b"large", number=1000))
        start = time.monotonic()
        for _ in range(100):
            store.add("n", 1)
        assert time.monotonic() - start < time_limits.seconds(1)
        assert take(slow, 18 + len(value))[18:] == value


def test_no_descriptors_left() -> None:
    code = """
        import resource
        store = TCPStore("127.0.0.1", 0, is_master=True, secret=sys.argv[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        print(store.port, flush=True)
        sys.stdin.readline()
        before = time.process_time()
        time.sleep(0.3)
        print(store.add("n", 1), time.process_time() - before < 0.2, flush=True)
        sys.stdin.readline()
    """
    with Child(code, SECRET) as child:
        port = int(child.line())
        strangers = [socket.create_connection((HOST, port)) for _ in range(100)]
        child.say()
        assert child.line() == "1 True"
        for s in strangers:
            s.close()
        assert TCPStore(HOST, port, secret=SECRET, timeout=timedelta(seconds=10)).get("n") == b"1"


def as_nobody(f: Callable[[], bool]) -> bool:
    """What f returns in a child that is another user."""
    pid = os.fork()
    if pid == 0:
        result = False
        with contextlib.suppress(Exception):
            os.setuid(65534)
            result = f()
        os._exit(result)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_are_turned_away() -> None:
    store = master()
    name = "\0" + unix_name("tcp", store.port)

    def is_refused() -> bool:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(name)
            return s.recv(100) == b""

    assert as_nobody(is_refused)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_cannot_pose_as_the_server() -> None:
    name = unix_name("test", os.getpid())
    ready, go = os.pipe(), os.pipe()

    def pose() -> bool:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind("\0" + name)
            s.listen()
            os.write(ready[1], b"x")
            os.read(go[0], 1)
        return True

    child = threading.Thread(target=as_nobody, args=(pose,))
    child.start()
    os.read(ready[0], 1)
    try:
        with pytest.raises(_C.DistNetworkError, match=r"belongs to a process of another user"):
            ServedStore(Endpoint(name), timedelta(seconds=5))
    finally:
        os.write(go[1], b"x")
        child.join()
        for fd in ready + go:
            os.close(fd)


# ---- servers that are none ----


@contextlib.contextmanager
def impostor(talk: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port where each who comes is talked to so."""
    with socket.create_server((HOST, 0)) as s:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    one, _ = s.accept()
                    with one, contextlib.suppress(OSError):
                        talk(one)

        thread = threading.Thread(target=serve)
        thread.start()
        yield s.getsockname()[1]
        s.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("line", [b"SSH-2.0-OpenSSH_9.2p1\r\n", b"HTTP/1.1 400 Bad Request\r\n" * 9, b"w"])
def test_another_program_on_the_port(line: bytes) -> None:
    text = "does not answer" if line == b"w" else "is not a store of warptape"
    with impostor(lambda s: (s.sendall(line), s.recv(1))) as port:
        start = time.monotonic()
        with pytest.raises(_C.DistNetworkError, match=f"{HOST}:{port}.*{text}"):
            TCPStore(HOST, port, secret=SECRET, timeout=ms(500))
        assert time.monotonic() - start < time_limits.seconds(1)


def test_a_server_that_hangs_up() -> None:
    with (
        impostor(lambda s: None) as port,
        pytest.raises(_C.DistNetworkError, match=r"it closes the connection"),
    ):
        TCPStore(HOST, port, secret=SECRET, timeout=timedelta(seconds=30))


def test_a_server_without_the_secret() -> None:
    talk = lambda s: (s.sendall(MAGIC + b"n" * 32), take(s, 80), s.sendall(b"p" * 32))
    with impostor(talk) as port, pytest.raises(_C.DistNetworkError, match=r"does not know this job.s secret"):
        TCPStore(HOST, port, secret=SECRET)


def test_interrupted_while_nobody_serves() -> None:
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        TCPStore(HOST, 9)
    assert time.monotonic() - start < time_limits.seconds(0.4)
    timer.join()


# ---- processes that end ----

SERVE = """
    store = TCPStore("127.0.0.1", 0, is_master=True, secret=sys.argv[1])
    print(store.port, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("secret", ["", SECRET])
def test_server_killed(secret: str) -> None:
    with Child(SERVE, secret) as child:
        store = TCPStore(HOST, int(child.line()), secret=secret)
        threading.Timer(0.1, child.process.kill).start()
        start = time.monotonic()
        with pytest.raises(_C.DistNetworkError, match=r"is gone.*usually rank 0, has ended"):
            store.get("never")
        assert time.monotonic() - start < time_limits.seconds(1)
        with pytest.raises(_C.DistNetworkError, match=r"is gone"):
            store.set("k", "v")


def test_server_stopped() -> None:
    with Child(SERVE, SECRET) as child:
        store = TCPStore(HOST, int(child.line()), secret=SECRET, timeout=ms(100))
        child.process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(_C.DistNetworkError, match=r"does not answer.*stopped"):
            store.get("k")
        assert time.monotonic() - start < time_limits.seconds(3)


JOIN_AS = """
    name, rank = sys.argv[1:]
    store = ServedStore(Endpoint(name), timedelta(seconds=10), rank=int(rank))
    if rank == "2" and os.fork() == 0:  # outlives its parent
        time.sleep(5)
        os._exit(0)
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    del store
"""


def test_the_store_knows_who_is_gone() -> None:
    name = unix_name("test", os.getpid())
    here = Endpoint(name)
    server = StoreServer(here)
    store = ServedStore(here, timedelta(seconds=10), server)
    with Child(JOIN_AS, name, 1) as polite, Child(JOIN_AS, name, 2) as killed:
        pids = [c.line() for c in (polite, killed)]
        polite.say()
        assert polite.process.wait(5) == 0
        os.kill(int(pids[1]), signal.SIGKILL)
        start = time.monotonic()
        assert store.get("gone/2").startswith(f"rank 2 (process {pids[1]}) is gone".encode())
        assert time.monotonic() - start < time_limits.seconds(0.5)
        assert not store.check(["gone/1"])


def test_forked_children_serve_nobody() -> None:
    store = master(SECRET)
    port = store.port
    store.set("k", "parent")
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(Exception):
            store.set("k", "child")  # by a connection of its own
            status = 0
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        with contextlib.suppress(Exception):
            del store  # neither waits for a thread that is not here, nor ends the parent's
        os._exit(status)
    os.read(ready[0], 1)
    assert store.get("k") == b"child"
    del store
    again = TCPStore(HOST, port, is_master=True, secret=SECRET)  # the child does not keep the port
    os.write(go[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    again.set("k", "v")
    assert again.get("k") == b"v"
    for fd in ready + go:
        os.close(fd)


def test_waits_are_dropped_with_their_clients() -> None:
    """Neither connections nor memory of those who gave up stay at the server."""
    with Child(SERVE, "") as child:
        store = TCPStore(HOST, int(child.line()))
        fds = f"/proc/{child.process.pid}/fd"
        store.num_keys()
        before = len(os.listdir(fds))
        for _ in range(300):
            with pytest.raises(_C.DistStoreError):
                store.wait(["never"], timedelta(0))
        threads = [threading.Thread(target=store.get, args=("late",)) for _ in range(20)]
        for t in threads:
            t.start()
        deadline = time.monotonic() + 5
        while len(os.listdir(fds)) < before + 19 and time.monotonic() < deadline:
            time.sleep(0.01)
        store.set("late", "")
        for t in threads:
            t.join()
        time.sleep(0.05)
        assert len(os.listdir(fds)) <= before + 8  # the client keeps a few


@pytest.fixture(autouse=True, scope="module")
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
