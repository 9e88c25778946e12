"""Ctrl-C in a simulated world, as a terminal or a notebook sends it, and ranks that end the others."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time

import pytest
from launched import kernel, started
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


PROFILED = """
import sys
from warptape import distributed as dist

def body():
    if dist.get_rank() == 1:
        raise KeyError("here")
    while True:
        pass

try:
    dist.simulate(2, body)
except dist.RankFailed:
    sys.setprofile(lambda *_: None)
    (lambda: print("called"))()
"""


def test_a_profile_function_after_ranks_were_interrupted():
    """Python 3.11 hangs in the next call if it was told of an exception for a thread that never got one."""
    with started([sys.executable, "-c", PROFILED]) as job:
        assert job.finish()[1] == "called\n"


CELLS = {
    "collectives": """
def rank():
    ready(dist.get_rank())
    while True:
        dist.all_reduce(wt.ones(9))
dist.simulate(3, rank)
""",
    "a pipeline": """
def rank():
    (stage,) = pp.split_into_stages([nn.Linear(8, 8) for _ in range(3)])
    runner = pp.Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    ready(dist.get_rank())
    while True:
        runner.step(wt.ones(4, 8), target=wt.ones(4, 8))
dist.simulate(3, rank)
""",
    "a parameter server": """
def rank():
    net = nn.Linear(8, 8)
    server = ParameterServer(net, lambda p: optim.SGD(p, lr=0.1), placement="rank0", mode="asynchronous")
    ready(dist.get_rank())
    while True:
        net(wt.ones(4, 8)).sum().backward()
        server.step()
dist.simulate(3, rank)
""",
    "training": """
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
optimizer = optim.AdamW(net.parameters())
ready()
while True:
    optimizer.zero_grad()
    net(wt.randn(512, 64)).square().mean().backward()
    optimizer.step()
""",
    "processes of the launcher": """
body = "import time; print('rea' + 'dy', flush=True); time.sleep(600)"
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "rank.py")
    open(path, "w").write(body)
    launcher = [sys.executable, "-m", "warptape.distributed.run", "--nproc-per-node", "2"]
    job = subprocess.Popen([*launcher, path], stdout=subprocess.PIPE)
    job.stdout.readline()
    ready()
    job.wait()
""",
}
NAMES = """
import os, subprocess, sys, tempfile
import warptape as wt
from warptape import distributed as dist, nn, optim
from warptape.parallel import ParameterServer, pipeline as pp

def ready(rank=0):
    if rank == 0:
        print("rea" + "dy", flush=True)
"""


@pytest.fixture(scope="module")
def notebook():
    """A kernel that has run the imports; the tests' cells run one after the other in it."""
    with kernel() as (manager, client):
        assert client.execute(NAMES, reply=True, timeout=seconds(30))["content"]["status"] == "ok"
        yield manager, client


@pytest.mark.parametrize("cell", CELLS)
def test_interrupting_a_kernel(notebook, cell):
    """What a notebook's stop button does; the kernel goes on."""
    manager, client = notebook
    sent = client.execute(CELLS[cell])
    while "ready" not in str(client.get_iopub_msg(timeout=seconds(30))["content"]):
        pass
    time.sleep(0.1)  # into the loop
    start = time.monotonic()
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=seconds(10))
    assert reply["parent_header"]["msg_id"] == sent
    assert (reply["content"]["status"], reply["content"].get("ename")) == ("error", "KeyboardInterrupt")
    assert time.monotonic() - start < seconds(2)
    status = "aborted"  # what comes too soon behind an error is put off by the kernel
    again = "assert dist.simulate(2, dist.get_rank) == [0, 1]\nif 'job' in globals(): job.wait(10)"
    while status == "aborted" and time.monotonic() - start < seconds(15):
        status = client.execute(again, reply=True, timeout=seconds(30))["content"]["status"]
    assert status == "ok"
