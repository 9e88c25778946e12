"""warptape.multiprocessing: spawn's errors are PyTorch's, and its processes die with their parent."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
from pathlib import Path

import pytest
import warptape
from launched import started, until
from time_limits import seconds
from warptape import multiprocessing as mp

HEAD = """
import os, signal, sys, time
import warptape.multiprocessing as mp
from warptape.multiprocessing import ProcessExitedException, ProcessRaisedException

def show(i, *args):
    sys.stdout.write(f'{i} {args}' + chr(10))

def fail(i, how):
    if i == 1:
        time.sleep(0.1)
        exec(how)
    time.sleep(60)

def wait(i):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.write('ready' + chr(10))
    sys.stdout.flush()
    time.sleep(60)

"""


def run(tmp_path: Path, text: str) -> tuple[int, str, str]:
    body = "".join(f"    {line}\n" for line in text.strip().splitlines())
    (tmp_path / "script.py").write_text(HEAD + "if __name__ == '__main__':\n" + body)
    with started([sys.executable, "-u", str(tmp_path / "script.py")]) as job:
        result = job.finish()
        assert job.left() == []
        return result


def test_names_of_multiprocessing_are_here() -> None:
    assert set(multiprocessing.__all__) < set(mp.__all__)
    assert mp.Event.__func__ is multiprocessing.Event.__func__
    assert isinstance(mp.get_context("spawn"), type(multiprocessing.get_context("spawn")))
    assert warptape.multiprocessing is mp


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_function_gets_its_index_and_arguments(tmp_path: Path, method: str) -> None:
    code, out, err = run(tmp_path, f"print(mp.spawn(show, (1, 'a'), nprocs=2, start_method='{method}'))")
    assert (code, sorted(out.splitlines())) == (0, ["0 (1, 'a')", "1 (1, 'a')", "None"]), err


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        (
            "raise ValueError('boom')",
            "ProcessRaisedException",
            r"\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n",
        ),
        ("raise ValueError('x' * 1_000_000)", "ProcessRaisedException", r"error:\n"),
        ("sys.exit(7)", "ProcessExitedException", "'process 1 terminated with exit code 7'"),
        ("os.kill(os.getpid(), 9)", "ProcessExitedException", "'process 1 terminated with signal SIGKILL'"),
    ],
)
def test_a_failure_ends_all_and_is_raised(tmp_path: Path, how: str, kind: str, words: str) -> None:
    begin = time.monotonic()
    code, out, err = run(
        tmp_path,
        f"try: mp.spawn(fail, ({how!r},), nprocs=3)\n"
        f"except {kind} as e: print(repr(e.msg)); print(e.error_index, getattr(e, 'exit_code', None), "
        "getattr(e, 'signal_name', None))",
    )
    assert code == 0, err
    message, rest = out.splitlines()
    assert words in message
    if "boom" in how:
        assert r"ValueError: boom\n" in message
    assert rest == {"s": "1 7 None", "o": "1 -9 SIGKILL"}.get(how[0], "1 None None")
    assert time.monotonic() - begin < seconds(10)


def test_context_is_joined_by_hand(tmp_path: Path) -> None:
    code, out, err = run(
        tmp_path,
        """
context = mp.start_processes(time.sleep, nprocs=2, join=False, start_method='fork')
print(len(set(context.pids())), context.join(timeout=0.1))
while not context.join(): pass
print(context.join())
""",
    )
    assert (code, out) == (0, "2 False\nTrue\n"), err


def test_exceptions_travel() -> None:
    error = mp.ProcessExitedException("m", 1, 2, -9, "SIGKILL")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, mp.ProcessException)
    assert (copy.msg, copy.error_index, copy.error_pid, copy.exit_code, copy.signal_name) == (
        "m", 1, 2, -9, "SIGKILL",
    )  # fmt: skip


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("thread", ["main", "other"])
def test_kill_9_of_the_parent_leaves_nothing(tmp_path: Path, method: str, thread: str) -> None:
    start = f"mp.spawn(wait, nprocs=2, join=False, start_method='{method}')"
    if thread == "other":  # and it ends: its processes live on, until the parent dies
        start = f"import threading; t = threading.Thread(target=lambda: {start}); t.start(); t.join()"
    (tmp_path / "script.py").write_text(
        HEAD + f"if __name__ == '__main__':\n    {start}\n    time.sleep(60)\n"
    )
    with started([sys.executable, "-u", str(tmp_path / "script.py")]) as job:
        for _ in range(2):
            assert job.process.stdout.readline() == "ready\n"
        assert len(job.left()) >= 3
        os.kill(job.pid, signal.SIGKILL)
        until(lambda: job.left() == [], 1.0)
