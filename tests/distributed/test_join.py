"""Join: ranks with different numbers of batches train like one process that averages what there is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from warptape import nn, optim
from warptape.distributed.algorithms.join import Join, Joinable, JoinHook
from warptape.distributed.optim import ZeroRedundancyOptimizer
from warptape.nn.parallel import DistributedDataParallel as DDP


def simulate(n: int, fn: Callable[..., Any]) -> list[Any]:
    return dist.simulate(n, fn, timeout=timedelta(seconds=20))


def model() -> nn.Module:
    wt.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def batches(rank: int) -> list[wt.Tensor]:
    generator = wt.Generator().manual_seed(rank)
    return [wt.randn(2, 3, generator=generator, dtype=wt.float64) for _ in range((3, 5, 2, 5)[rank])]


def expected(ranks: int, by_all: bool) -> list[wt.Tensor]:
    alone = model()
    optimizer = optim.SGD(alone.parameters(), lr=0.1)
    for step in range(max(len(batches(r)) for r in range(ranks))):
        there = [batches(r)[step] for r in range(ranks) if step < len(batches(r))]
        optimizer.zero_grad()
        (sum(alone(x).square().sum() for x in there) / (ranks if by_all else len(there))).backward()
        optimizer.step()
    return [p.detach() for p in alone.parameters()]


@pytest.mark.parametrize("by_all", [True, False])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("buckets", [25, 1e-5])
def test_uneven_batches(ranks: int, by_all: bool, buckets: float) -> None:
    def train() -> list[wt.Tensor]:
        ddp = DDP(model(), bucket_cap_mb=buckets)
        optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        with ddp.join(divide_by_initial_world_size=by_all):
            for x in batches(dist.get_rank()):
                optimizer.zero_grad()
                ddp(x).square().sum().backward()
                optimizer.step()
        return [p.detach() for p in ddp.parameters()]

    want = expected(ranks, by_all)
    for found in simulate(ranks, train):
        for a, b in zip(found, want, strict=True):
            assert (a - b).abs().max() < 1e-12


def test_accumulation_and_buffers() -> None:
    """Iterations without a reduction are followed, too; buffers are those of a rank that still trains."""

    def train() -> tuple[Any, ...]:
        wt.manual_seed(1)
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
        ddp = DDP(net)
        optimizer = optim.SGD(ddp.parameters(), lr=0.1)
        own = batches(dist.get_rank())
        with ddp.join():
            for i, x in enumerate(own):
                if i == 1:
                    with ddp.no_sync():
                        ddp(x).square().sum().backward()
                    continue
                ddp(x).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return [p.detach() for p in ddp.parameters()], net[1].running_mean.clone()

    (first, mean), (second, other) = simulate(2, train)
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    assert mean.equal(other)


@pytest.mark.parametrize("by_all", [True, False])
def test_shares_of_the_optimizer(by_all: bool) -> None:
    """A rank without inputs goes on updating its share, also where its own last gradients are gone."""

    def train() -> list[wt.Tensor]:
        ddp = DDP(model())
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optim.SGD, lr=0.1)
        with Join([ddp, optimizer], divide_by_initial_world_size=by_all):
            for x in batches(dist.get_rank()):
                ddp(x).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return [p.detach() for p in ddp.parameters()]

    want = expected(4, by_all)
    for found in simulate(4, train):
        for a, b in zip(found, want, strict=True):
            assert (a - b).abs().max() < 1e-12


def test_early_termination_is_raised_on_all_ranks() -> None:
    def train() -> str:
        ddp = DDP(model())

        def loop() -> None:
            with Join([ddp], throw_on_early_termination=True):
                for x in batches(dist.get_rank()):
                    ddp(x).sum().backward()

        with pytest.raises(RuntimeError, match="exhausted inputs"):
            loop()
        dist.barrier()
        return "met"

    assert simulate(2, train) == ["met", "met"]


def test_own_joinable() -> None:
    """The example of PyTorch's tutorial: a counter of all ranks' inputs."""

    class Hook(JoinHook):
        def __init__(self, counter: Any) -> None:
            self.counter = counter

        def main_hook(self) -> None:
            dist.all_reduce(wt.zeros(1))

        def post_hook(self, is_last_joiner: bool) -> None:
            self.counter.last = is_last_joiner

    class Counter(Joinable):
        def __init__(self) -> None:
            super().__init__()
            self.count, self.last = 0, None

        def __call__(self) -> None:
            Join.notify_join_context(self)
            one = wt.ones(1)
            dist.all_reduce(one)
            self.count += int(one.item())

        def join_hook(self, **kwargs: Any) -> JoinHook:
            return Hook(self)

        @property
        def join_device(self) -> Any:
            return wt.device("cpu")

        @property
        def join_process_group(self) -> Any:
            return dist.group.WORLD or dist.get_default_group()

    def run() -> tuple[int, Any]:
        counter = Counter()
        with Join([counter]):
            for _ in range(2 + 3 * dist.get_rank()):
                counter()
        return counter.count, counter.last

    assert simulate(2, run) == [(4, False), (7, True)]


def test_bad_joinables() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Join([])
    with pytest.raises(TypeError, match="Joinable"):
        Join([object()])  # type: ignore[list-item]


def test_functional_collectives() -> None:
    from warptape.distributed import _functional_collectives as C

    def run() -> None:
        rank, mesh = dist.get_rank(), dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        x = (wt.arange(4.0) + rank).requires_grad_()
        y = C.wait_tensor(C.all_reduce(x, "avg", (mesh, 0)))
        assert y.tolist() == (wt.arange(4.0) + rank % 2 + 1).tolist()
        (y * (rank + 1)).sum().backward()
        assert x.grad.tolist() == [(rank % 2 + 1 + rank % 2 + 3) / 2] * 4
        assert C.all_gather_tensor(x, 0, mesh["b"]).shape == (8,)
        whole = C.reduce_scatter_tensor(wt.ones(4, 2), "sum", 0, list(range(4)))
        assert whole.tolist() == [[4.0, 4.0]]
        rows = C.all_to_all_single_autograd(x, [1] * 4, [1] * 4, dist.get_default_group())
        assert rows.tolist() == [float(r + rank) for r in range(4)]
        assert C.broadcast(x, 2, dist.get_default_group()).tolist() == [2.0, 3.0, 4.0, 5.0]
        assert C.all_reduce(x, "max", [0, 1, 2, 3])[0] == 3
        with pytest.raises(ValueError, match="mesh of one axis"):
            C.all_reduce(x, "sum", mesh)
        with pytest.raises(ValueError, match="reduction out of"):
            C.all_reduce(x, "mode", mesh["a"])

    simulate(4, run)
