"""Compiled functions among ranks: collectives see what is pending, and DDP trains as without compile."""

from __future__ import annotations

import copy

import warptape as torch
import warptape.distributed as dist
import warptape.nn.functional as F
from warptape import nn


def test_a_collective_comes_after_what_reads_its_tensor():
    def work(rank):
        @torch.compile
        def f(x):
            y = x * 2
            dist.all_reduce(x)
            return y, x + 0

        return [t.tolist() for t in f(torch.full((3,), float(rank + 1)))]

    assert dist.simulate(2, lambda: work(dist.get_rank())) == [[[2] * 3, [3] * 3], [[4] * 3, [3] * 3]]


def test_ddp_trains_as_without_compile():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    data = [(torch.randn(5, 6), torch.randint(0, 3, (5,))) for _ in range(2)]

    def work(compiled):
        ddp = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        x, t = data[dist.get_rank()]

        def step():
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), t).backward()
            optimizer.step()

        step = torch.compile(step) if compiled else step
        for _ in range(3):
            step()
        return [p.detach().numpy().tobytes() for p in ddp.parameters()]

    eager = dist.simulate(2, lambda: work(False))
    assert dist.simulate(2, lambda: work(True)) == eager
