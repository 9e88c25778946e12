"""Local SGD: hooks and averagers; PowerSGD; recorded collectives of distributed.nn."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from warptape import nn, optim
from warptape.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local
from warptape.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from warptape.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from warptape.distributed.nn import functional as recorded
from warptape.distributed.optim import PostLocalSGDOptimizer
from warptape.nn.parallel import DistributedDataParallel as DDP


def model() -> nn.Module:
    wt.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4)).double()


def data(rank: int, step: int) -> wt.Tensor:
    generator = wt.Generator().manual_seed(10 * rank + step)
    return wt.randn(5, 8, generator=generator, dtype=wt.float64)


def train(hook: Any, state: Any, steps: int, averager: Any = None) -> list[wt.Tensor]:
    ddp = DDP(model())
    ddp.register_comm_hook(state, hook)
    optimizer: Any = optim.SGD(ddp.parameters(), lr=0.1)
    if averager is not None:
        optimizer = PostLocalSGDOptimizer(optimizer, averager)
    for step in range(steps):
        optimizer.zero_grad()
        ddp(data(dist.get_rank(), step)).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in ddp.parameters()]


def one_process(ranks: int, steps: int, together: int) -> list[list[wt.Tensor]]:
    """Parameters of each rank: gradients averaged for `together` steps, then each for itself."""
    models = [model() for _ in range(ranks)]
    for step in range(steps):
        for rank, each in enumerate(models):
            each.zero_grad()
            each(data(rank, step)).square().mean().backward()
        for mine in zip(*(m.parameters() for m in models), strict=True):
            average = sum(p.grad for p in mine) / ranks
            for p in mine:
                p.data -= 0.1 * (average if step < together else p.grad)
    return [[p.detach() for p in m.parameters()] for m in models]


def test_post_local_sgd() -> None:
    def run() -> list[wt.Tensor]:
        state = local.PostLocalSGDState(None, None, 2, post_local_gradient_allreduce=False)
        return train(local.post_localSGD_hook, state, 4)

    for found, want in zip(dist.simulate(2, run), one_process(2, 4, 2), strict=True):
        assert all((a - b).abs().max() < 1e-12 for a, b in zip(found, want, strict=True))


def test_averager() -> None:
    def run() -> Any:
        state = local.PostLocalSGDState(None, None, 1, post_local_gradient_allreduce=False)
        averager = PeriodicModelAverager(period=3, warmup_steps=0)
        found = train(local.post_localSGD_hook, state, 4, averager)
        return found, averager.step

    (first, steps), (second, _) = dist.simulate(2, run)
    assert steps == 4
    want = [sum(ps) / 2 for ps in zip(*one_process(2, 4, 1), strict=True)]
    for a, b, c in zip(first, second, want, strict=True):
        assert a.equal(b) and (a - c).abs().max() < 1e-12


def test_power_sgd() -> None:
    """With the whole rank nothing is lost; with less what is lost comes later."""
    plain = one_process(2, 6, 6)[0]

    def run(rank: int) -> list[wt.Tensor]:
        state = power.PowerSGDState(None, rank, start_powerSGD_iter=2, min_compression_rate=0.1)
        found = train(power.powerSGD_hook, state, 6)
        assert len(state.q_memory_dict) == (2 if rank == 3 else 1)
        return found

    for found in dist.simulate(2, lambda: run(3)):
        assert max((a - b).abs().max() for a, b in zip(found, plain, strict=True)) < 0.02
    first, second = dist.simulate(2, lambda: run(7))
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    with pytest.raises(ValueError, match="first two iterations"):
        power.PowerSGDState(None, start_powerSGD_iter=1)


def test_recorded_collectives() -> None:
    def run() -> None:
        rank = dist.get_rank()
        x = wt.full((2,), rank + 1.0, requires_grad=True)
        parts = recorded.all_gather(x)
        assert [p.tolist() for p in parts] == [[1.0, 1.0], [2.0, 2.0]]
        (parts[0] * (rank + 1)).sum().backward()
        assert x.grad.tolist() == [3.0 * (rank == 0)] * 2
        assert recorded.all_reduce(x).tolist() == [3.0, 3.0]
        assert recorded.broadcast(x, 1).tolist() == [2.0, 2.0]
        assert recorded.reduce(x, 0).tolist() == [3.0 * (rank == 0)] * 2
        assert recorded.reduce_scatter(wt.empty(2), [x, 2 * x]).tolist() == [3.0 * (rank + 1)] * 2
        with pytest.raises(NotImplementedError, match="SUM"):
            recorded.all_reduce(x, dist.ReduceOp.MAX)

    dist.simulate(2, run)


def test_rpc_refuses() -> None:
    from warptape.distributed import rpc
    from warptape.distributed.optim import DistributedOptimizer

    assert not rpc.is_available()
    with pytest.raises(NotImplementedError, match="remote procedure"):
        rpc.init_rpc("worker")
    with pytest.raises(NotImplementedError, match="remote procedure"):
        DistributedOptimizer()
