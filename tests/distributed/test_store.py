"""Stores: what they promise, alone, between threads and between processes."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import time_limits
from store_tools import HOST, SECRET, Child, client, master, ms, no_secret, nothing_left
from warptape import _C
from warptape.distributed._store import FileStore, HashStore, PrefixStore, Store, TCPStore

__all__ = ["no_secret", "nothing_left"]  # fixtures of every test here

KINDS: dict[str, Callable[[Path], Store]] = {
    "hash": lambda _: HashStore(),
    "prefix": lambda _: PrefixStore("some", HashStore()),
    "unix": lambda _: master(),
    "tcp": lambda _: master(SECRET),
    "file": lambda folder: FileStore(str(folder / "meet"), 1),
}


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return KINDS[request.param](tmp_path)


# ---- what every store promises ----


def test_values(store: Store) -> None:
    store.set("text", "é")
    store.set("bytes", b"\0\xff")
    store.set("empty", b"")
    assert (store.get("text"), store.get("bytes"), store.get("empty")) == ("é".encode(), b"\0\xff", b"")
    assert store.num_keys() == 3
    store.set("text", "b")
    assert store.get("text") == b"b" and store.num_keys() == 3
    assert store.delete_key("text") and not store.delete_key("text")
    assert store.check(["bytes", "empty"]) and not store.check(["bytes", "text"]) and store.check([])


def test_add(store: Store) -> None:
    assert [store.add("n", 5), store.add("n", -7), store.add("n", 0)] == [5, -2, -2]
    assert store.get("n") == b"-2"
    store.set("word", "five")
    with pytest.raises(ValueError, match=r"'.*word' holds something that is not a number"):
        store.add("word", 1)
    assert store.add("n", 1) == -1


def test_compare_set(store: Store) -> None:
    assert store.compare_set("k", "expected", "new") == b"expected" and not store.check(["k"])
    assert store.compare_set("k", "", "first") == b"first"
    assert store.compare_set("k", "other", "second") == b"first"
    assert store.compare_set("k", "first", "second") == b"second" == store.get("k")


def test_lists_of_keys(store: Store) -> None:
    """As PyTorch's stores: what is appended is joined, and keys come without the prefix of a PrefixStore."""
    store.append("word", "po")
    store.append("word", b"tato")
    store.multi_set(["b", "a"], ["2", b"1"])
    assert store.get("word") == b"potato" and store.multi_get(["a", "b"]) == [b"1", b"2"]
    assert store.list_keys() == ["a", "b", "word"] and store.num_keys() == 3
    with pytest.raises(ValueError, match="expected as many values as keys, got 1 keys and 2 values"):
        store.multi_set(["a"], ["1", "2"])
    copy = store.clone()
    copy.set("c", "3")
    assert store.get("c") == b"3" and store.has_extended_api()


def test_queues(store: Store) -> None:
    assert store.queue_len("q") == 0
    for value in ("first", b"\xff", "last"):
        store.queue_push("q", value)
    assert store.queue_len("q") == 3 and store.num_keys() == 0 and not store.check(["q"])
    assert [store.queue_pop("q"), store.queue_pop("q", block=False)] == [b"first", b"\xff"]
    assert store.queue_pop("q") == b"last"
    with pytest.raises(_C.QueueEmptyError, match="the queue 'q' is empty"):
        store.queue_pop("q", block=False)
    store.set_timeout(ms(50))
    with pytest.raises(_C.DistStoreError, match=r"waited 0.05 s for .*q'"):
        store.queue_pop("q")


def test_each_value_of_a_queue_is_popped_once(store: Store) -> None:
    got: list[bytes] = []
    taking = [
        threading.Thread(target=lambda: got.extend(store.queue_pop("q") for _ in range(25))) for _ in range(4)
    ]
    for t in taking:
        t.start()
    for i in range(100):
        store.queue_push("q", str(i))
    for t in taking:
        t.join(10)
    assert sorted(map(int, got)) == list(range(100)) and store.queue_len("q") == 0


def test_appended_at_once(store: Store) -> None:
    adding = [threading.Thread(target=lambda: [store.append("k", "x") for _ in range(50)]) for _ in range(4)]
    for t in adding:
        t.start()
    for t in adding:
        t.join(10)
    assert store.get("k") == b"x" * 200


def test_time_is_over(store: Store) -> None:
    assert store.timeout > timedelta(minutes=1)
    store.set_timeout(ms(100))
    assert store.timeout == ms(100)
    store.set("here", "")
    start = time.monotonic()
    with pytest.raises(_C.DistStoreError, match=r"waited 0.1 s for '.*missing', which no rank has set"):
        store.get("missing")
    with pytest.raises(_C.DistStoreError, match=r"waited 0.2 s for.*there'"):
        store.wait(["here", "there"], ms(200))
    assert 0.3 <= time.monotonic() - start < time_limits.seconds(1)
    with pytest.raises(_C.DistStoreError):
        store.wait(["there"], timedelta(0))
    store.wait(["here"], timedelta(0))
    store.wait(["here"], timedelta.max)
    with pytest.raises(ValueError, match=r"timeout of 0 or more"):
        store.wait(["here"], ms(-1))


def test_threads(store: Store) -> None:
    """Those who wait hold up nobody, and all get what they wait for."""
    found: list[bytes] = []
    waiting = [threading.Thread(target=lambda: found.append(store.get("late"))) for _ in range(12)]
    both = threading.Thread(target=lambda: store.wait(["late", "later"]))
    adding = [threading.Thread(target=lambda: [store.add("n", 1) for _ in range(100)]) for _ in range(4)]
    for t in [*waiting, both, *adding]:
        t.start()
    for t in adding:
        t.join(10)
    assert store.get("n") == b"400" and found == []
    store.set("late", "now")
    for t in waiting:
        t.join(5)
    assert found == [b"now"] * 12 and both.is_alive()
    store.set("later", "")
    both.join(5)
    assert not both.is_alive()


def test_interrupted(store: Store) -> None:
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.1, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        store.get("never")
    assert time.monotonic() - sent[0] < time_limits.seconds(0.2)
    timer.join()
    store.set("k", "v")
    assert store.get("k") == b"v"


def test_files(store: Store) -> None:
    if not store._shares_files():
        with pytest.raises(_C.DistNetworkError, match=r"hands over no file descriptors"):
            store._set_file("f", 0)
        return
    fd = os.memfd_create("test")
    os.write(fd, b"content")
    store._set_file("f", fd)
    os.close(fd)
    for _ in range(3):
        fd = store._get_file("f")
        assert os.pread(fd, 99, 0) == b"content" and not os.get_inheritable(fd)
        os.close(fd)
    store.set_timeout(ms(50))
    with pytest.raises(_C.DistStoreError, match=r"f2'"):
        store._get_file("f2")


def test_prefixes_keep_apart() -> None:
    base = HashStore()
    a, b = PrefixStore("a", base), PrefixStore("b", PrefixStore("c", base))
    a.set("k", "1")
    b.set("k", "2")
    assert (base.get("a/k"), base.get("c/b/k")) == (b"1", b"2") and a.underlying_store is base


@pytest.mark.parametrize("secret", ["", SECRET])
def test_large_values(secret: str) -> None:
    store = master(secret)
    value = random.Random(0).randbytes(5 << 20)
    store.set("large", value)
    assert store.get("large") == value
    with pytest.raises(ValueError, match=r"may have 64 MiB"):
        store.set("larger", b"x" * (64 << 20))
    assert store.num_keys() == 1


# ---- rendezvous ----

JOIN = """
    store = TCPStore("127.0.0.1", int(sys.argv[1]), 2, secret=sys.argv[2])
    store.set("from child", store.get("from parent") + b"!")
    store._shares_files() and store._set_file("file", os.memfd_create("child"))
    sys.stdin.readline()
"""


@pytest.mark.parametrize("secret", ["", SECRET])
def test_two_processes(secret: str) -> None:
    late = master(secret)  # only for its number
    port = late.port
    del late
    with Child(JOIN, port, secret):  # comes before the master does
        time.sleep(0.2)
        store = TCPStore(HOST, port, 2, is_master=True, secret=secret, timeout=timedelta(seconds=20))
        assert store.num_keys() == 1  # as PyTorch counts
        store.set("from parent", "hello")
        assert store.get("from child") == b"hello!"
        if not secret:
            fd = store._get_file("file")
            assert os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:child")
            os.close(fd)


def test_workers_missing() -> None:
    with pytest.raises(_C.DistStoreError, match=r"1 of 2 processes came within 0.1 s"):
        master(world_size=2, timeout=ms(100))
    assert master(world_size=2, timeout=ms(100), wait_for_workers=False).num_keys() == 0
    assert master(world_size=1).num_keys() == 1


@pytest.mark.parametrize("secret", ["", SECRET])
def test_nobody_serves(secret: str) -> None:
    start = time.monotonic()
    with pytest.raises(_C.DistNetworkError, match=r"cannot connect to .*9.*Connection refused.*MASTER_PORT"):
        TCPStore(HOST, 9, timeout=ms(300), secret=secret)
    assert 0.1 < time.monotonic() - start < time_limits.seconds(1)


@pytest.mark.parametrize("secret", ["", SECRET])
def test_address_taken(secret: str) -> None:
    store = master(secret)
    with pytest.raises(_C.DistNetworkError, match=f"{store.port}.* taken.*(port|MASTER_PORT)"):
        TCPStore(HOST, store.port, is_master=True, secret=secret)
    port = store.port
    del store
    TCPStore(HOST, port, is_master=True, secret=secret)


def test_bad_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"'10\.0\.0\.1' .* secret.*WARPTAPE_SECRET"):
        TCPStore("10.0.0.1", 29500, is_master=True)
    with pytest.raises(ValueError, match=r"port from 1 to 65535, got 70000"):
        TCPStore(HOST, 70000)
    with pytest.raises(ValueError, match=r"port from 1 to 65535, got 0"):
        TCPStore(HOST, 0)
    for serves in (True, False):
        with pytest.raises(ValueError, match="TCPStore world size cannot be 0"):
            TCPStore(HOST, 0, world_size=0, is_master=serves)
    with pytest.raises(_C.DistNetworkError, match=r"cannot listen on no-such-host.invalid"):
        TCPStore("no-such-host.invalid", 0, is_master=True, secret=SECRET)
    monkeypatch.setenv("WARPTAPE_SECRET", SECRET)
    store = TCPStore(HOST, 0, is_master=True)
    with pytest.raises(_C.DistNetworkError, match=r"hands over no file"):  # so it is TCP
        store._set_file("f", 0)


# ---- a file ----


def test_file_of_two_processes(tmp_path: Path) -> None:
    path = tmp_path / "meet"
    path.touch(mode=0o644)  # as tempfile leaves it
    code = """
        store = FileStore(sys.argv[1], 2)
        store.set("child", "here")
        store.wait(["parent"])
        sys.stdin.readline()
    """
    with Child(code, path) as child:
        store = FileStore(str(path), 2)
        assert store.get("child") == b"here"
        assert path.stat().st_mode & 0o777 == 0o600
        store.set("parent", "here")
        child.say()
        assert child.process.wait(5) == 0
    del store
    assert not path.exists()


def test_file_of_a_dead_process(tmp_path: Path) -> None:
    path = tmp_path / "meet"
    with Child("store = FileStore(sys.argv[1]); print('up', flush=True); time.sleep(60)", path) as child:
        assert child.line() == "up"
    assert path.exists()
    store = FileStore(str(path))
    store.set("k", "v")
    assert FileStore(str(path)).get("k") == b"v"


def test_file_with_something_else(tmp_path: Path) -> None:
    path = tmp_path / "meet"
    path.write_text("my data")
    with pytest.raises(_C.DistNetworkError, match=r"holds something that no store wrote"):
        FileStore(str(path))
    assert path.read_text() == "my data"
    other = {"unix": "x", "here": "another host", "host": HOST, "port": 9, "secret": SECRET}
    path.write_text(json.dumps(other))
    with pytest.raises(_C.DistNetworkError, match=r"cannot be reached; if the file is left from another run"):
        FileStore(str(path))


# ---- the proof of the secret ----

RFC_4231 = [
    (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
    (
        b"Jefe",
        b"what do ya want for nothing?",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    ),
    (b"\xaa" * 20, b"\xdd" * 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
    (
        b"\xaa" * 131,
        b"Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    ),
]


@pytest.mark.parametrize("key, data, expected", RFC_4231)
def test_hmac_of_the_standard(key: bytes, data: bytes, expected: str) -> None:
    assert _C._distributed._hmac_sha256(key, data).hex() == expected


def test_hmac_of_every_length() -> None:
    rng = random.Random(1)
    for n in range(200):
        key, data = rng.randbytes(n), rng.randbytes(199 - n if n % 2 else n)
        assert _C._distributed._hmac_sha256(key, data) == hmac.new(key, data, hashlib.sha256).digest()


def test_wrong_secret() -> None:
    store = master(SECRET)
    start = time.monotonic()
    with pytest.raises(_C.DistNetworkError, match=f"{store.port} refused the secret.*WARPTAPE_SECRET"):
        client(store, "another", timeout=timedelta(seconds=60))
    assert time.monotonic() - start < time_limits.seconds(1)
    with contextlib.suppress(_C.DistStoreError):
        store.wait(["anything"], timedelta(0))
    assert store.num_keys() == 0
