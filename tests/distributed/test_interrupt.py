"""Ctrl-C in a simulated world, as a terminal or a notebook sends it, and ranks that end the others."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time

import pytest
from launched import environ, started
from time_limits import seconds
from warptape import distributed as dist

PROGRAM = """
import json, os, sys, threading, time
import warptape as wt
from warptape import distributed as dist

def ready():
    dist.barrier()
    if dist.get_rank() == 0:
        os.write(1, b"ready\\n")

def reduce():
    ready()
    while True:
        dist.all_reduce(wt.ones(1000))

def wait():
    ready()
    if dist.get_rank() == 0:
        dist.recv(wt.ones(3), 1)
    dist.barrier(dist.new_group([1, 2, 3]) if dist.get_rank() else None)
    dist.barrier()

def compute():
    ready()
    while True:
        pass

def swallow():
    ready()
    while True:
        try:
            dist.barrier()
        except Exception:
            pass

for _ in range(3):
    try:
        dist.simulate(4, globals()[sys.argv[1]])
    except KeyboardInterrupt:
        end = time.time()
        time.sleep(0.1)  # a thread that has done all is listed till the interpreter has cleared it away
        ranks = [t.name for t in threading.enumerate() if t.name.startswith("rank")]
        again = dist.simulate(2, lambda: dist.get_rank())
        print(json.dumps([end, ranks, again, dist.is_initialized()]), flush=True)
"""


@pytest.mark.parametrize("what", ["reduce", "wait", "compute", "swallow"])
def test_ends_all_ranks_at_once(what):
    """Three times in one process, as who runs a cell again; the machine may be busy at two of them."""
    took = []
    with started([sys.executable, "-c", PROGRAM, what]) as job:
        for _ in range(3):
            assert job.process.stdout.readline() == "ready\n"
            time.sleep(0.05)
            sent = time.time()
            job.process.send_signal(signal.SIGINT)
            end, ranks, again, joined = json.loads(job.process.stdout.readline())
            assert ranks == [] and again == [0, 1] and not joined
            took.append(end - sent)
        assert job.finish()[0] == 0
    assert min(took) < seconds(0.5) and max(took) < seconds(5), took


def test_a_rank_that_raises_ends_those_that_compute():
    def body():
        dist.barrier()
        if dist.get_rank() == 1:
            raise KeyError("here")
        while True:
            pass

    start = time.monotonic()
    with pytest.raises(dist.RankFailed, match="rank 1 of 3 raised KeyError"):
        dist.simulate(3, body)
    assert time.monotonic() - start < seconds(4)
    assert not [t for t in threading.enumerate() if t.name.startswith("rank")]


def test_interrupting_a_kernel():
    """What a notebook's stop button does; the kernel goes on."""
    pytest.importorskip("ipykernel")
    manager_of = pytest.importorskip("jupyter_client.manager")
    manager, client = manager_of.start_new_kernel(env=environ())
    run = lambda code: client.execute(code, reply=True, timeout=seconds(30))["content"]
    body = "if dist.get_rank() == 0: print('rea' + 'dy', flush=True)"
    try:
        run("import warptape as wt\nfrom warptape import distributed as dist")
        run(f"def body():\n    {body}\n    while True: dist.all_reduce(wt.ones(9))")
        sent = client.execute("dist.simulate(3, body)")
        while "ready" not in str(client.get_iopub_msg(timeout=seconds(30))["content"]):
            pass
        start = time.monotonic()
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=seconds(10))
        assert reply["parent_header"]["msg_id"] == sent
        assert (reply["content"]["status"], reply["content"].get("ename")) == ("error", "KeyboardInterrupt")
        assert time.monotonic() - start < seconds(5)
        status = "aborted"  # what comes too soon behind an error is put off by the kernel
        while status == "aborted" and time.monotonic() - start < seconds(15):
            status = run("assert dist.simulate(2, lambda: dist.get_rank()) == [0, 1]")["status"]
        assert status == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
