"""The end of a group whose calls are still on their way: dropped, closed by several threads, called after."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta

import pytest
import warptape as torch
from launched import launch
from warptape import _C
from warptape import distributed as dist
from warptape._C import DistBackendError

D = _C._distributed
TIMEOUT = timedelta(seconds=20)


@pytest.fixture(autouse=True)
def joined():
    dist.init_process_group("shm", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def started(name, count=4, size=1 << 16):
    group = D._new_group([0], name, "shm", "nccl", TIMEOUT)
    tensors = [torch.ones(size) for _ in range(count)]
    return group, [group._run(D._Op.all_reduce, [], [x], async_op=True) for x in tensors]


def threads_of_process():
    return len(os.listdir("/proc/self/task"))


def test_a_group_that_only_its_queue_holds_ends_with_its_last_call():
    """No thread is left; under valgrind or the address sanitizer the queue's reads no freed memory."""
    before = threads_of_process() + 8  # what the pool may start meanwhile; the groups had one each
    for i in range(200):
        group, works = started(f"dropped{i}")
        if i % 2:
            works[-1].wait()
        del group, works
    end = time.monotonic() + 20
    while threads_of_process() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threads_of_process() <= before


def test_groups_of_several_threads(joined):
    def body(thread):
        for i in range(30):
            group, works = started(f"thread{thread}/{i}")
            del group
            works.pop().wait() if i % 3 else works.clear()

    # The world is the main thread's: its context is that of threads without one.
    threads = [threading.Thread(target=body, args=(t,)) for t in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads)


def test_closing_waits_for_the_queue_and_ends_what_comes_after():
    for i in range(50):
        group, works = started(f"closed{i}")
        refused = []

        def call(group=group, refused=refused):
            try:
                while True:
                    group._run(D._Op.all_reduce, [], [torch.ones(64)], async_op=True)
            except DistBackendError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=call) for _ in range(2)]
        threads += [threading.Thread(target=group._close) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert all(work.is_completed() for work in works)
        assert len(refused) == 2 and "was destroyed" in refused[0]


LEAVES = """
import os, signal, sys, time
import warptape.distributed as dist

def leave(*_):
    dist.destroy_process_group()
    sys.exit(7)

dist.init_process_group()
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    dist.barrier()
time.sleep(20)
"""


def test_a_handler_leaves_from_within_a_call(tmp_path) -> None:
    path = tmp_path / "script.py"
    path.write_text(LEAVES)
    assert launch("--nproc-per-node=2", path)[0] == 7
