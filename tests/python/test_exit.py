"""A process ends with its own exit code, whatever its daemon threads do at that moment."""

from __future__ import annotations

import subprocess
import sys

import pytest

JOB = """
import sys, threading, time
import warptape as wt
import warptape.distributed as dist
from warptape.utils.data import DataLoader, TensorDataset

class Double(wt.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        spin()
        return g * 2

def spin():
    for _ in range(3000):
        pass

def hooked(x):
    y = x * 2
    y.register_hook(lambda g: spin())
    with wt.autograd.graph.saved_tensors_hooks(lambda t: (spin(), t)[1], lambda t: (spin(), t)[1]):
        (y * y).sum().backward()

def collectives(x):
    dist.all_reduce(x.detach().clone())

WORK = {
    "matmul": lambda x: x.detach() @ x.detach(),
    "item": lambda x: x.sum().item(),
    "backward": lambda x: (x @ x).sum().backward(),
    "hooks": hooked,
    "function": lambda x: Double.apply(x).sum().backward(),
    "threads of a loader": lambda x: list(DataLoader(TensorDataset(x.detach()), batch_size=4)),
    "collectives": collectives,
}
work = WORK[sys.argv[1]]
if work is collectives:
    dist.init_process_group("shm", store=dist.HashStore(), rank=0, world_size=1)
begun = threading.Semaphore(0)

def run():
    x = wt.randn(200, 200, requires_grad=True)
    while True:
        work(x)
        begun.release()

for _ in range(4):
    threading.Thread(target=run, daemon=True).start()
for _ in range(4):
    begun.acquire()
time.sleep(float(sys.argv[2]))
sys.exit(7)
"""


@pytest.mark.parametrize(
    "work", ["matmul", "item", "backward", "hooks", "function", "threads of a loader", "collectives"]
)
def test_daemon_threads(work: str) -> None:
    for i in range(4):
        job = [sys.executable, "-c", JOB, work, str(0.013 * i)]
        done = subprocess.run(job, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 7, done.stderr
