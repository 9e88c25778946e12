"""What DistributedDataParallel sends of buffers, and outputs that no loss uses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from warptape import nn
from warptape.nn.parallel import DistributedDataParallel as DDP


def simulate(n: int, fn: Callable[[], Any]) -> list[Any]:
    return dist.simulate(n, fn, timeout=timedelta(seconds=20))


class Buffers(nn.Module):
    """Buffers of several kinds, all full of the rank's number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        rank = dist.get_rank()
        self.register_buffer("scale", wt.full((2,), float(rank)))
        self.register_buffer("count", wt.tensor(rank))
        self.register_buffer("mask", wt.tensor([rank == 0, True]))
        self.register_buffer("strided", wt.full((3, 2), float(rank)).t())
        self.register_buffer("empty", wt.zeros(0))
        self.register_buffer("nothing", None)
        self.register_buffer("transient", wt.full((1,), float(rank)), persistent=False)

    def values(self) -> list[Any]:
        return [t.tolist() for t in self.buffers()]

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return self.layer(x) * (1 + self.scale)


def disturb(model: Any, rank: int) -> None:
    """Other values, other objects, and a buffer that was not there."""
    model.scale = wt.full((2,), 5.0 + rank)
    model.count += rank + 1
    model.mask = ~model.mask
    model.strided.fill_(7.0 + rank)
    model.nothing = wt.tensor([3 + rank])
    model.transient = wt.tensor([float(rank)], dtype=wt.float64)
    model.layer.register_buffer("late", wt.tensor(8.0 + rank))


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_forward_sends_the_buffers_of_now(ranks: int) -> None:
    def rank() -> Any:
        model = Buffers()
        parallel = DDP(model)
        out = [model.values()]
        for _ in range(2):
            disturb(model, dist.get_rank())
            parallel(wt.ones(1, 2)).sum().backward()
            out.append(model.values())
        disturb(model, dist.get_rank())
        with wt.no_grad():
            parallel.eval()(wt.ones(1, 2))
        out.append(model.values())
        return out

    found = simulate(ranks, rank)
    assert all(each == found[0] for each in found)
    assert found[0][1][:2] == [[5.0, 5.0], 1] and found[0][1][-1] == 8.0


def test_none_are_sent_on_request_or_after_a_pass_that_does_not_reduce() -> None:
    def rank() -> Any:
        out = []
        for options in ({"broadcast_buffers": False}, {"forward_sync_buffers": False}, {}):
            model = Buffers()
            parallel = DDP(model, **options)
            with parallel.no_sync():
                parallel(wt.ones(1, 2))
                model.scale = wt.full((2,), 5.0 + dist.get_rank())
                parallel(wt.ones(1, 2))
            out.append(model.scale[0].item())
        return out

    assert simulate(2, rank) == [[5.0] * 3, [6.0] * 3]


def test_what_is_saved_for_backward_stays_valid() -> None:
    """Two forward passes before one backward pass, as a discriminator has."""

    def rank() -> float:
        parallel = DDP(Buffers())
        (parallel(wt.ones(1, 2)) + parallel(wt.ones(1, 2))).sum().backward()
        return parallel.module.layer.bias.grad[0].item()

    assert simulate(2, rank) == [2.0, 2.0]


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        wt.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(3, 2).double() for _ in range(3))

    def forward(self, x: wt.Tensor) -> Any:
        return {"a": self.a(x), "rest": [self.b(x), self.c(x.detach() + 1)], "input": x * 2}


def trained(model: Any, x: wt.Tensor, uses: str) -> None:
    out = model(x)
    heads = {"a": out["a"], "b": out["rest"][0], "c": out["rest"][1]}
    sum((heads[name].square().sum() for name in uses), out["input"].sum()).backward()


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "uses", [["a"] * 3, ["a", "ab", "b"], ["ab", "b", "abc"], ["abc", "a", ""], ["b", "", "a"]], ids=str
)
def test_outputs_that_a_loss_does_not_use(uses: list[str], ranks: int, views: bool) -> None:
    def data(step: int, rank: int) -> wt.Tensor:
        return wt.randn(4, 3, generator=wt.Generator().manual_seed(10 * step + rank), dtype=wt.float64)

    def rank() -> list[Any]:
        model, out = DDP(Heads(), find_unused_parameters=True, gradient_as_bucket_view=views), []
        for step in range(3):
            model.zero_grad()
            # The input requires a gradient: a rank that uses no head has a backward pass, too.
            trained(model, data(step, dist.get_rank()).requires_grad_(), uses[(dist.get_rank() + step) % 3])
            out.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        return out

    found = simulate(ranks, rank)
    for step in range(3):
        plain = Heads()
        for r in range(ranks):
            trained(plain, data(step, r).requires_grad_(), uses[(r + step) % 3])
        for r in range(ranks):
            for g, p in zip(found[r][step], plain.parameters(), strict=True):
                assert (g is None) == (p.grad is None)
                assert g is None or wt.allclose(g, p.grad / ranks)


@pytest.mark.parametrize("views", [False, True])
def test_losses_of_one_forward_one_after_the_other(views: bool) -> None:
    """Through parameters of their own and through the same; the sum of their averages."""

    def rank() -> Any:
        model = DDP(Heads(), find_unused_parameters=True, gradient_as_bucket_view=views)
        for _ in range(2):
            model.zero_grad()
            x = wt.full((1, 3), 1.0 + dist.get_rank(), dtype=wt.float64)
            out = model(x)
            out["a"].sum().backward(retain_graph=True)
            out["rest"][0].sum().backward()
            out["a"].sum().backward()
        return [p.grad.flatten()[0].item() for p in (model.module.a.weight, model.module.b.weight)]

    assert simulate(2, rank) == [[3.0, 1.5]] * 2


def test_accumulation_with_unused_outputs() -> None:
    def rank() -> Any:
        model = DDP(Heads(), find_unused_parameters=True)
        for step in range(2):
            x = wt.full((1, 3), 1.0 + dist.get_rank() + step, dtype=wt.float64)
            with model.no_sync():
                model(x)["a"].sum().backward()
            model(x)["rest"][0].sum().backward()
        return [p.grad.flatten()[0].item() for p in (model.module.a.weight, model.module.b.weight)]

    assert simulate(2, rank) == [[4.0, 4.0]] * 2
