"""What fully_shard takes: lists of modules as one group, compiled modules, models without memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from tensor_models import simulate
from warptape import nn, optim
from warptape.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from warptape.parallel import fully_shard
from warptape.utils.checkpoint import checkpoint


class Blocks(nn.Module):
    """[B, 5] -> [B, 3]. The norm runs twice, and the last module is called after others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(5, 7), nn.Tanh())
        self.norm, self.middle, self.last = nn.LayerNorm(7), nn.Linear(7, 7), nn.Linear(7, 3)
        self.remat = False

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        x = checkpoint(self.first, x, use_reentrant=False) if self.remat else self.first(x)
        x = x + self.middle(self.norm(x))
        return self.last(self.norm(x))


def built() -> Any:
    wt.manual_seed(3)
    return Blocks().double()


def data(step: int) -> wt.Tensor:
    return wt.randn(12, 5, generator=wt.Generator().manual_seed(step), dtype=wt.float64)


def trained(model: Any, rank: int = 0, ranks: int = 1) -> list[wt.Tensor]:
    """Parameters after some steps, of which ranks take rows each, and one forward pass without gradients."""
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    for step in range(4):
        optimizer.zero_grad()
        model(data(step)[rank::ranks]).square().mean().backward()
        optimizer.step()
        with wt.no_grad():
            model(data(step))
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]


def whole_list(model: Any, **options: Any) -> None:
    assert fully_shard([model.norm, model.last], **options) == [model.norm, model.last]
    fully_shard(model.first, **options)


def all_of_them(model: Any, **options: Any) -> None:
    fully_shard([model.first, model.middle, model.norm, model.last], **options)


def compiled(model: Any, **options: Any) -> None:
    for name in ("first", "middle"):
        setattr(model, name, wt.compile(getattr(model, name)))
        fully_shard(getattr(model, name), **options)


def compiled_list(model: Any, **options: Any) -> None:
    model.first, model.last = wt.compile(model.first), wt.compile(model.last)
    fully_shard([model.first, model.last], **options)


def rematerialised(model: Any, **options: Any) -> None:
    model.remat = True
    fully_shard([model.first, model.last], **options)


@pytest.mark.parametrize("reshard", [None, True, False])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("way", [whole_list, all_of_them, compiled, compiled_list, rematerialised])
def test_training_equals_that_of_one_process(
    way: Callable[..., None], root: bool, ranks: int, reshard: bool | None
) -> None:
    if not root and way is not all_of_them:
        return  # parameters of no group would have gradients of one rank

    def rank() -> list[wt.Tensor]:
        model = built()
        way(model, reshard_after_forward=reshard)
        if root:
            fully_shard(model)
        return trained(model, dist.get_rank(), ranks)

    expected = trained(built())
    for found in simulate(ranks, rank):
        for a, b in zip(found, expected, strict=True):
            assert wt.allclose(a, b, rtol=1e-9), (a - b).abs().max()


def test_a_group_goes_on_after_an_error_in_one_of_its_modules() -> None:
    def rank() -> list[wt.Tensor]:
        model = built()
        whole_list(model)
        fully_shard(model)
        with pytest.raises(RuntimeError):
            model(wt.ones(2, 4, dtype=wt.float64))
        model.middle.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(data(0))
        model.middle._forward_hooks.clear()
        with pytest.raises(ValueError, match="gathered for a pass"):
            optim.SGD(model.parameters(), lr=0.1)
        for module in (model, model.norm):
            module.reshard()
        return trained(model, dist.get_rank(), 2)

    for found in simulate(2, rank):
        for a, b in zip(found, trained(built()), strict=True):
            assert wt.allclose(a, b, rtol=1e-9)


def test_lists_that_are_refused() -> None:
    def rank() -> None:
        model = built()
        for given, match in (
            ([], "an empty list"),
            ([model.norm, model.norm], "twice in the list"),
            ([model, model.last], "inside of another module"),
        ):
            with pytest.raises(ValueError, match=match):
                fully_shard(given)
        with pytest.raises(TypeError, match="expected a Module, got Tensor"):
            fully_shard([wt.ones(2)])
        fully_shard([model.norm, model.last])
        with pytest.raises(ValueError, match="sharded before"):
            fully_shard(model.norm)

    simulate(2, rank)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_whole_state_into_a_model_without_memory(everywhere: bool, ranks: int) -> None:
    def rank() -> None:
        wt.manual_seed(8)
        given = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)).state_dict()
        with wt.device("meta"):
            model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7))
        fully_shard(model[0])
        fully_shard(model)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=not everywhere)
        set_model_state_dict(model, given if everywhere or dist.get_rank() == 0 else {}, options=options)
        assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
        for name, t in get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)).items():
            assert wt.equal(t, given[name]), name
        model(wt.ones(4, 5)).sum().backward()
        assert all(p.grad.shape == p.shape for p in model.parameters())

    simulate(ranks, rank)


class Written(nn.Module):
    """One whose forward changes its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        with wt.no_grad():
            self.layer.weight.clamp_(-0.1, 0.1)
        return self.layer(x)


def test_changes_that_would_be_lost_are_refused() -> None:
    def rank() -> None:
        model = fully_shard(Written())
        with pytest.raises(RuntimeError, match=r"Linear\.weight was changed in place while gathered"):
            model(wt.ones(2, 5)).sum().backward()
        for table, text in (
            (nn.Embedding(5, 3, max_norm=1.0), "max_norm"),
            (nn.Embedding(5, 3, sparse=True), "sparse gradients"),
            (nn.EmbeddingBag(5, 3, sparse=True), "sparse gradients"),
        ):
            with pytest.raises(ValueError, match=rf"0\.weight, a table with {text}"):
                fully_shard(nn.Sequential(table))
            fully_shard(nn.Sequential(table), ignored_params={table.weight})
        model = fully_shard(nn.Linear(5, 3))
        with wt.no_grad():
            model.weight.clamp_(-0.1, 0.1)  # of the part
        model(wt.ones(2, 5)).sum().backward()
        assert model.weight.full_tensor().abs().max() <= 0.1

    simulate(2, rank)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        wt.manual_seed(4)
        self.left, self.right = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: wt.Tensor, both: bool) -> wt.Tensor:
        return self.left(x) + self.right(x) if both else self.left(x)


@pytest.mark.parametrize("divide", ["average", "sum", "factor"])
def test_gradients_of_copies_are_averaged_with_the_last_pass(divide: str) -> None:
    """Also of a parameter that the last pass does not use."""

    def rank() -> None:
        plain, at = Branches(), dist.get_rank()
        every = wt.randn(4, 2, 6, 5, generator=wt.Generator().manual_seed(2))
        for x in every:
            for i in (0, 1):
                (plain(x[i], both=i == 0).square().sum() / 4).backward()
        model, seen = Branches(), []
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (2, 2)))
        model.set_all_reduce_hook(lambda gradients: seen.append(gradients.numel()))
        if divide == "sum":
            model.set_force_sum_reduction_for_comms(True)
        elif divide == "factor":
            model.set_reduce_scatter_divide_factor(8.0)
        for i in (0, 1):
            model.set_requires_all_reduce(i == 1)
            model.set_is_last_backward(i == 1)
            model(every[at, i], both=i == 0).square().sum().backward()
            if i == 0:
                assert not seen and all(p.grad is None for p in model.parameters())
        assert sum(seen) == sum(-(-p.shape[0] // 2) * p[0].numel() for p in plain.parameters())
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            scale = 0.5 if divide == "factor" else 1.0
            assert wt.allclose(p.grad.full_tensor(), q.grad * scale, rtol=1e-5, atol=1e-6)

    simulate(4, rank)
