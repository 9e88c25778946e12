"""Stages that hold replicas: DistributedDataParallel and fully_shard in the module of a PipelineStage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from pipeline_models import KINDS, SEVERAL, SINGLE, simulate
from warptape import nn, optim
from warptape.nn.parallel import DistributedDataParallel as DDP
from warptape.parallel import fully_shard
from warptape.parallel import pipeline as pp

STAGES = 4  # of two layers each: two ranks have one or two of them
ROWS, M, STEPS = 16, 4, 3


def layers(count: int) -> list[nn.Module]:
    """`count` stages [B, 5] -> [B, 5] of the same layers; BatchNorm's buffers are not compared."""
    wt.manual_seed(0)
    every = [nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5)).double() for _ in range(STAGES)]
    each = STAGES // count
    return [nn.Sequential(*every[i * each : (i + 1) * each]) for i in range(count)]


def whole(module: nn.Module, mesh: Any, **options: Any) -> nn.Module:
    return DDP(module, process_group=mesh.get_group(), **options)


def inside(module: Any, mesh: Any) -> nn.Module:
    """Each layer by itself, and one of them not at all but by a module that has both."""
    return nn.Sequential(*(whole(layer, mesh) for layer in module))


def sharded(module: Any, mesh: Any, **options: Any) -> nn.Module:
    for layer in module:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(module, mesh=mesh, **options)


WAYS: dict[str, Callable[[Any, Any], nn.Module]] = {
    "ddp": whole,
    "ddp without views": lambda m, mesh: whole(m, mesh, gradient_as_bucket_view=False),
    "ddp that finds unused": lambda m, mesh: whole(m, mesh, find_unused_parameters=True),
    "ddp of a static graph": lambda m, mesh: whole(m, mesh, static_graph=True),
    "ddp in the stage": inside,
    "shards": sharded,
    "shards kept whole": lambda m, mesh: sharded(m, mesh, reshard_after_forward=False),
}


def data(step: int) -> tuple[wt.Tensor, wt.Tensor]:
    generator = wt.Generator().manual_seed(step)
    draw = lambda: wt.randn(ROWS, 5, generator=generator, dtype=wt.float64)
    return draw(), draw()


def expected(steps: int) -> list[wt.Tensor]:
    (model,) = layers(1)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        x, y = data(step)
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("schedule", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_replicas_are_averaged_over_all_micro_batches(way: str, schedule: str) -> None:
    def rank() -> Any:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        at, copy = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
        count = 2 if schedule in SINGLE else STAGES
        placed = "loop" if schedule in SINGLE else SEVERAL[schedule].placement
        mine = [at] if count == 2 else [at, STAGES - 1 - at] if placed == "v" else [at, at + 2]
        modules = layers(count)
        stages = [
            pp.PipelineStage(WAYS[way](modules[i], mesh["dp"]), i, count, group=mesh.get_group("pp"))
            for i in mine
        ]
        kind = SINGLE.get(schedule) or SEVERAL[schedule]
        runner = kind(stages[0] if schedule in SINGLE else stages, M, F.mse_loss)
        own = [p for i in mine for p in modules[i].parameters()]
        optimizer = optim.AdamW(own, lr=0.01)
        for step in range(STEPS):
            optimizer.zero_grad()
            x, y = (t.chunk(2)[copy] for t in data(step))
            runner.step(x, target=y)
            optimizer.step()
        each = len(expected(0)) // count
        for n, i in enumerate(mine):
            for p, q in zip(
                own[n * each : (n + 1) * each], expected(STEPS)[i * each : (i + 1) * each], strict=True
            ):
                full: Any = p.full_tensor() if hasattr(p, "full_tensor") else p
                assert wt.allclose(full, q, rtol=1e-9), (full - q).abs().max()

    simulate(4, rank)


def test_a_parameter_that_no_micro_batch_uses_is_named() -> None:
    class Spare(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 5)
            self.spare = nn.Parameter(wt.ones(2))

    def rank(**options: Any) -> Any:
        mesh = dist.init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "dp"))
        module = Spare()
        stage = pp.PipelineStage(whole(module, mesh["dp"], **options), 0, 1, group=mesh.get_group("pp"))
        pp.ScheduleGPipe(stage, 2, F.mse_loss).step(wt.ones(4, 5), target=wt.ones(4, 5))
        return module.spare.grad

    with pytest.raises(dist.RankFailed, match=r"did not receive grad for rank \d: spare"):
        simulate(2, rank)
    assert simulate(2, lambda: rank(find_unused_parameters=True)) == [None, None]
