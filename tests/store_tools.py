"""What the tests of stores share: masters, clients, other processes, and a look at what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from warptape.distributed import _store
from warptape.distributed._store import TCPStore

HOST = "127.0.0.1"
SECRET = "a secret of the tests"
PYTHON_PATH = str(Path(_store.__file__).parents[2])


def ms(n: float) -> timedelta:
    return timedelta(milliseconds=n)


@pytest.fixture(autouse=True)
def no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARPTAPE_SECRET", raising=False)


def counts() -> tuple[int, int]:
    """Open descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    before = counts()
    yield
    request.node.funcargs.pop("store", None)
    deadline = time.monotonic() + 2
    # Fewer is well: what an earlier test of this process left may end now.
    while any(now > then for now, then in zip(counts(), before, strict=True)):
        assert time.monotonic() < deadline, (counts(), before)
        time.sleep(0.01)


class Child:
    """Another Python process that runs the code and talks by lines."""

    def __init__(self, code: str, *args: object) -> None:
        head = "import os, sys, time, signal\nfrom datetime import timedelta\n"
        head += "from warptape.distributed._store import *\nfrom warptape.distributed._store import _dist\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", head + textwrap.dedent(code), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        )

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def say(self, text: str = "") -> None:
        assert self.process.stdin
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()


def master(secret: str = "", **options: Any) -> TCPStore:
    return TCPStore(HOST, 0, is_master=True, secret=secret, **options)


def client(store: TCPStore, secret: str = "", **options: Any) -> TCPStore:
    return TCPStore(HOST, store.port, secret=secret, **options)
