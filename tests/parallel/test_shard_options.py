"""Options and setters of fully_shard, and replicate: training equals that of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from tensor_models import simulate
from warptape import nn, optim
from warptape.distributed.optim import _apply_optimizer_in_backward
from warptape.distributed.tensor import Replicate, Shard
from warptape.parallel import fully_shard, replicate
from warptape.parallel import tensor as tp
from warptape.parallel.shard import ReplicateModule, transport

V, ROWS, STEPS = 11, 8, 3


class Net(nn.Module):
    """Tokens [B] -> [B, 3]; sizes that do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(V, 5), nn.Linear(5, 7), nn.Linear(7, 3)

    def forward(self, tokens: wt.Tensor) -> wt.Tensor:
        return self.down(self.up(self.embed(tokens)).tanh())


def built() -> Any:
    wt.manual_seed(3)
    return Net().double()


def tokens(step: int) -> wt.Tensor:
    return wt.randint(0, V, (ROWS,), generator=wt.Generator().manual_seed(step))


def wholes(model: Any) -> list[wt.Tensor]:
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]


def trained(model: Any, rank: int = 0, ranks: int = 1, steps: int = STEPS) -> list[wt.Tensor]:
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        model(tokens(step)[rank::ranks]).square().mean().backward()
        optimizer.step()
    return wholes(model)


def layers(model: Any, apply: Any = fully_shard, **options: Any) -> Any:
    for each in (model.embed, model.up, model.down, model):
        apply(each, **options)
    return model


def check(ranks: int, split: Callable[[], Any], groups: int | None = None) -> None:
    """Training on so many ranks; `groups` of them share the rows, all by default."""

    def run() -> None:
        rank, n = dist.get_rank(), groups or ranks
        for a, b in zip(trained(split(), rank % n, n), want, strict=True):
            assert (a - b).abs().max() < 1e-12

    want = trained(built())
    simulate(ranks, run)


@pytest.mark.parametrize(("ranks", "near"), [(4, 2), (4, 1), (4, 4), (8, 4), (2, 2)])
def test_a_whole_stays_among_neighbours(ranks: int, near: int) -> None:
    check(ranks, lambda: layers(built(), reshard_after_forward=near))


def test_neighbours_gather_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward gathers from all ranks, backward from the neighbours alone."""
    sizes: dict[int, list[int]] = {}
    real = dist.all_gather_into_tensor

    def noted(out: Any, part: Any, group: Any, async_op: bool) -> Any:
        sizes.setdefault(dist.get_rank(), []).append(group.size())
        return real(out, part, group, async_op)

    monkeypatch.setattr(transport.dist, "all_gather_into_tensor", noted)

    def run() -> list[int]:
        model = fully_shard(built(), reshard_after_forward=2)
        seen = sizes.setdefault(dist.get_rank(), [])
        out = model(tokens(0)).square().mean()
        forward = len(seen)
        out.backward()
        assert set(seen[:forward]) == {4} and set(seen[forward:]) == {2}
        with wt.no_grad():
            model(tokens(0))
        assert seen[-1] == 4
        return seen

    simulate(4, run)


def test_numbers_that_are_refused() -> None:
    def run() -> None:
        with pytest.raises(ValueError, match="reshard_after_forward=3 does not divide the 4 ranks"):
            fully_shard(built(), reshard_after_forward=3)
        for wrong in (0, -1, 1.5, "all"):
            with pytest.raises(TypeError, match="is True, False, None or a number"):
                fully_shard(built(), reshard_after_forward=wrong)  # type: ignore[arg-type]

    simulate(4, run)


def test_replicate() -> None:
    def split() -> Any:
        model = layers(built(), replicate)
        assert isinstance(model, ReplicateModule) and type(model).__name__ == "ReplicateNet"
        assert all(p.placements == (Replicate(),) for p in model.parameters())
        return model

    check(2, split)
    check(3, lambda: replicate(built()), 1)


def test_replicate_of_tensor_parallel_layers() -> None:
    def split() -> Any:
        grid = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = built()
        model.up = nn.Linear(5, 8).double()
        model.down = nn.Linear(8, 3).double()
        plan = {"up": tp.ColwiseParallel(), "down": tp.RowwiseParallel()}
        tp.parallelize_module(model, grid["tp"], plan)
        replicate(model, mesh=grid["dp"])
        assert model.up.weight.placements == (Replicate(), Shard(0))
        return model

    def run() -> None:
        got = trained(split(), dist.get_rank() // 2, 2)
        wt.manual_seed(3)
        plain = built()
        plain.up, plain.down = nn.Linear(5, 8).double(), nn.Linear(8, 3).double()
        for a, b in zip(got, trained(plain), strict=True):
            assert (a - b).abs().max() < 1e-12

    simulate(4, run)


def test_replicate_refuses_two_axes() -> None:
    def run() -> None:
        with pytest.raises(ValueError, match="replicate: expected a mesh of one axis"):
            replicate(built(), mesh=dist.init_device_mesh("cpu", (2, 1)))

    simulate(2, run)


def test_ranks_of_a_part_of_the_job() -> None:
    """A mesh of ranks 1 and 2 alone; ranks 0 and 3 train by themselves."""

    def run() -> None:
        mesh = dist.DeviceMesh("cpu", [1, 2])
        rank = dist.get_rank()
        inside = mesh.get_coordinate() is not None
        model = built()
        if inside:
            layers(model, mesh=mesh)
            assert nn.utils.clip_grad_norm_(model.parameters(), 1.0) == 0
        else:
            with pytest.raises(ValueError, match=f"rank {rank} is not in the mesh"):
                fully_shard(model, mesh=mesh)
        got = trained(model, rank - 1 if inside else 0, 2 if inside else 1)
        for a, b in zip(got, want, strict=True):
            assert (a - b).abs().max() < 1e-12

    want = trained(built())
    simulate(4, run)


class Comm:
    """Counts, and has memory of its own."""

    def __init__(self, call: Any) -> None:
        self.call, self.calls, self.allocated = call, 0, 0

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> wt.Tensor:
        self.allocated += 1
        return wt.empty(*size, dtype=dtype, device=device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.call(*args, **kwargs)


def test_collectives_of_the_user() -> None:
    def split() -> Any:
        model = fully_shard(built())
        gather, scatter = Comm(dist.all_gather_into_tensor), Comm(dist.reduce_scatter_tensor)
        model.set_custom_all_gather(gather)
        model.set_custom_reduce_scatter(scatter)
        made.append((gather, scatter))
        return model

    made: list[Any] = []
    check(2, split)
    for gather, scatter in made:
        assert gather.calls == gather.allocated >= STEPS and scatter.calls == scatter.allocated >= STEPS


def test_a_table_is_not_put_together_for_backward() -> None:
    def split() -> Any:
        model = layers(built(), reshard_after_forward=True)
        model.embed.set_unshard_in_backward(False)
        return model

    check(2, split)


def test_event_of_the_optimizer() -> None:
    class Event:
        waited = 0

        def wait(self) -> None:
            Event.waited += 1

    def split() -> Any:
        model = layers(built())
        model.set_post_optim_event(Event())
        return model

    check(2, split)
    assert Event.waited == 2  # once on each rank


def test_parameters_that_one_rank_uses() -> None:
    """A rank without some gradients counts as zeros there."""

    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: wt.Tensor, left: bool) -> wt.Tensor:
            return (self.left if left else self.right)(x)

    def made() -> Any:
        wt.manual_seed(4)
        return Either().double()

    def run() -> None:
        rank = dist.get_rank()
        model = fully_shard(made())
        model.set_reduce_scatter_unused_params(True)
        model(wt.ones(1, 3, dtype=wt.float64) * (rank + 1), rank == 0).sum().backward()
        plain = made()
        for r in range(2):
            (plain(wt.ones(1, 3, dtype=wt.float64) * (r + 1), r == 0).sum() / 2).backward()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            assert (p.grad.full_tensor() - q.grad).abs().max() < 1e-12

    simulate(2, run)


def test_a_pass_that_failed_is_forgotten() -> None:
    def run() -> None:
        model = layers(built())
        out = model(tokens(0)[dist.get_rank() :: 2])
        out.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            out.square().mean().backward()
        model.reset_iter_state()
        assert all(isinstance(p, tp.DTensor) for p in model.parameters())
        for a, b in zip(trained(model, dist.get_rank(), 2), want, strict=True):
            assert (a - b).abs().max() < 1e-12

    want = trained(built())
    simulate(2, run)


def test_optimizers_in_backward() -> None:
    def stepped(model: Any, rank: int = 0, ranks: int = 1) -> list[wt.Tensor]:
        _apply_optimizer_in_backward(optim.AdamW, model.parameters(), {"lr": 0.05})
        for step in range(STEPS):
            model(tokens(step)[rank::ranks]).square().mean().backward()
            assert all(p.grad is None for p in model.parameters())
        return wholes(model)

    def run() -> None:
        for split in (layers, replicate):
            for a, b in zip(stepped(split(built()), dist.get_rank(), 2), want, strict=True):
                assert (a - b).abs().max() < 1e-12

    want = trained(built())
    for a, b in zip(stepped(built()), want, strict=True):
        assert (a - b).abs().max() < 1e-12
    simulate(2, run)
