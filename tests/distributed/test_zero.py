"""ZeroRedundancyOptimizer against the plain optimizer, and SyncBatchNorm against one process's batch norm."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from warptape import nn, optim
from warptape.distributed.optim import ZeroRedundancyOptimizer
from warptape.nn.parallel import DistributedDataParallel as DDP

RANKS = 3


def model() -> nn.Module:
    wt.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 2)).double()


def groups(net: nn.Module) -> list[dict[str, Any]]:
    return [{"params": list(net[0].parameters()), "lr": 0.05}, {"params": list(net[2].parameters())}]


def train(net: nn.Module, optimizer: optim.Optimizer, steps: int, first: int = 0, rank: Any = None) -> None:
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(first, first + steps):
        x = wt.randn(6, 4, dtype=wt.float64, generator=wt.Generator().manual_seed(step))
        optimizer.zero_grad()
        (net(x) if rank is None else net(x[rank::RANKS])).square().mean().backward()
        optimizer.step()
        schedule.step()


def values(net: nn.Module) -> wt.Tensor:
    return wt.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize("kind", [optim.AdamW, optim.SGD])
def test_zero_equals_the_plain_optimizer(kind: Any) -> None:
    options = {"lr": 0.01} | ({"momentum": 0.9} if kind is optim.SGD else {})

    def rank() -> Any:
        net = model()
        optimizer = ZeroRedundancyOptimizer(groups(net), kind, **options)
        train(DDP(net), optimizer, 10, rank=dist.get_rank())
        held = sum(t.numel() for s in optimizer.state.values() for t in s.values() if t is not None)
        optimizer.consolidate_state_dict(to=1)
        if dist.get_rank() != 1:
            with pytest.raises(RuntimeError, match="has not been consolidated on this rank"):
                optimizer.state_dict()
        return values(net), held, optimizer.state_dict() if dist.get_rank() == 1 else None

    net = model()
    plain = kind(groups(net), **options)
    train(net, plain, 10)
    found = dist.simulate(RANKS, rank)
    assert all((v - values(net)).norm() < 1e-10 for v, _, _ in found)
    whole = sum(t.numel() for s in plain.state.values() for t in s.values() if t is not None)
    assert sum(held for _, held, _ in found) == whole and max(held for _, held, _ in found) < whole

    state = found[1][2]
    assert state["param_groups"] == plain.state_dict()["param_groups"]
    again = model()
    again.load_state_dict(net.state_dict())
    loaded = kind(groups(again), **options)
    loaded.load_state_dict(state)
    train(again, loaded, 3, first=10)
    train(net, plain, 3, first=10)
    assert (values(again) - values(net)).norm() < 1e-10


def test_zero_loads_a_plain_state() -> None:
    net = model()
    plain = optim.AdamW(groups(net))
    train(net, plain, 5)
    start, state = {k: v.clone() for k, v in net.state_dict().items()}, plain.state_dict()
    state = {**state, "state": {i: {k: v.clone() for k, v in s.items()} for i, s in state["state"].items()}}
    train(net, plain, 5, first=5)

    def rank() -> Any:
        again = model()
        again.load_state_dict(start)
        optimizer = ZeroRedundancyOptimizer(groups(again), optim.AdamW)
        optimizer.load_state_dict(state)
        assert 0 < len(optimizer.state) < 4
        train(DDP(again), optimizer, 5, first=5, rank=dist.get_rank())
        return values(again)

    for found in dist.simulate(RANKS, rank):
        assert (found - values(net)).norm() < 1e-10


def test_a_group_added_later() -> None:
    def rank() -> Any:
        net = model()
        optimizer = ZeroRedundancyOptimizer(net[0].parameters(), optim.SGD, lr=1.0)
        optimizer.add_param_group({"params": list(net[2].parameters()), "lr": 0.0})
        before = values(net)
        train(DDP(net), optimizer, 1, rank=dist.get_rank())
        return (values(net) != before).tolist(), [g["lr"] for g in optimizer.param_groups]

    moved, rates = dist.simulate(RANKS, rank)[0]
    assert moved == [True] * 45 + [False] * 20 and rates == [0.9, 0.0]


def normed(net: nn.Module, x: wt.Tensor, target: wt.Tensor) -> wt.Tensor:
    F.mse_loss(net(x), target, reduction="sum").backward()
    return x.grad


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("shape", [(8, 3), (8, 3, 4), (8, 3, 2, 2)], ids=str)
def test_sync_batch_norm(shape: tuple[int, ...], momentum: float | None) -> None:
    """Uneven shares, as one batch norm over all: outputs, running statistics, every gradient."""
    draw = wt.Generator().manual_seed(4)
    x, y = (wt.randn(shape, dtype=wt.float64, generator=draw) + 5 for _ in range(2))
    cuts = [0, 3, 7, 8]

    def build() -> nn.Module:
        norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
        net = nn.Sequential(norm(3, momentum=momentum)).double()
        with wt.no_grad():
            net[0].weight.copy_(wt.tensor([1.0, 2.0, 3.0]))
        return net

    def rank() -> Any:
        net = nn.SyncBatchNorm.convert_sync_batchnorm(build())
        assert type(net[0]) is nn.SyncBatchNorm
        part = slice(cuts[dist.get_rank()], cuts[dist.get_rank() + 1])
        mine = x[part].clone().requires_grad_()
        grad = normed(net, mine, y[part])
        for p in net.parameters():
            dist.all_reduce(p.grad)
        buffers = [b.clone() for b in net.buffers()]
        net.eval()
        return grad, [p.grad for p in net.parameters()], buffers, net(x).detach()

    net, whole = build(), x.clone().requires_grad_()
    grad = normed(net, whole, y)
    expected = [p.grad for p in net.parameters()], list(net.buffers()), net.eval()(x).detach()
    found = dist.simulate(RANKS, rank)
    assert (wt.cat([f[0] for f in found]) - grad).norm() < 1e-10 * grad.norm()
    for _, parameters, buffers, out in found:
        for a, b in zip([*parameters, *buffers, out], [*expected[0], *expected[1], expected[2]], strict=True):
            assert (a - b).double().norm() <= 1e-10 * max(b.double().norm(), 1.0)


def test_sync_batch_norm_alone_is_a_batch_norm() -> None:
    x = wt.randn(4, 3)
    assert (nn.SyncBatchNorm(3)(x) == nn.BatchNorm1d(3)(x)).all()
    with pytest.raises(ValueError, match="at least 2D"):
        nn.SyncBatchNorm(3)(x[0])
