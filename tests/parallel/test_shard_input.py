"""What fully_shard refuses, and checkpoints of what it made."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import checkpoint_layouts as layouts
import pytest
import warptape as wt
import warptape.distributed as dist
from shard_training import net
from tensor_models import simulate
from warptape import nn, optim
from warptape.distributed import checkpoint
from warptape.parallel import MixedPrecisionPolicy, fully_shard
from warptape.parallel import tensor as tp


def test_bad_input_is_refused_before_any_collective() -> None:
    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(wt.ones(()))

        def forward(self, x: wt.Tensor) -> wt.Tensor:
            return x * self.scale

    def tied() -> Any:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        fully_shard(model[0])
        return model

    def rank() -> None:
        world = dist.init_device_mesh("cpu", (2,))
        grid = dist.init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        split = tp.parallelize_module(nn.Sequential(nn.Linear(4, 4)), grid["tp"], {"0": tp.ColwiseParallel()})
        cube, other = dist.init_device_mesh("cpu", (1, 2, 1)), dist.DeviceMesh("cuda", [0, 1])
        if dist.get_rank() == 1:  # a collective of rank 0 would meet this
            dist.barrier()
            return
        for error, match, call in (
            (
                TypeError,
                "is called with a parameter, got Shard",
                lambda: fully_shard(net(), shard_placement_fn=tp.Shard(1)),
            ),
            (
                TypeError,
                r"gives Shard\(dim\) or None, got 1 for 0.weight",
                lambda: fully_shard(net(), shard_placement_fn=lambda p: 1),
            ),
            (
                ValueError,
                r"0.bias is \[10\], and shard_placement_fn gives Shard\(dim=1\)",
                lambda: fully_shard(net(), shard_placement_fn=lambda p: tp.Shard(1)),
            ),
            (TypeError, "expected a Module", lambda: fully_shard(wt.ones(2))),
            (ValueError, "no forward of its own", lambda: fully_shard(nn.ModuleList([nn.Linear(2, 2)]))),
            (ValueError, "sharded before", lambda: fully_shard(fully_shard(nn.Linear(2, 2)))),
            (TypeError, "expected a DeviceMesh", lambda: fully_shard(net(), mesh=2)),
            (
                ValueError,
                "one axis, or of two",
                lambda: fully_shard(net(), mesh=cube),
            ),
            (
                ValueError,
                "on cpu.*mesh is of 'cuda'",
                lambda: fully_shard(net(), mesh=other),
            ),
            (TypeError, "True, False, None or a number", lambda: fully_shard(net(), reshard_after_forward=0)),
            (TypeError, "MixedPrecisionPolicy", lambda: fully_shard(net(), mp_policy=wt.bfloat16)),
            (TypeError, "param_dtype", lambda: fully_shard(net(), mp_policy=MixedPrecisionPolicy(wt.int64))),
            (TypeError, "OffloadPolicy", lambda: fully_shard(net(), offload_policy=1)),
            (ValueError, "scale has no dims", lambda: fully_shard(Scalar())),
            (ValueError, "1.weight is shared", lambda: fully_shard(tied())),
            (ValueError, "from one mesh", lambda: fully_shard(split, mesh=world)),
            (
                TypeError,
                "after fully_shard",
                lambda: fully_shard(net()).set_modules_to_forward_prefetch([net()]),
            ),
            (TypeError, "before fully_shard", lambda: copy.deepcopy(fully_shard(net()))),
        ):
            with pytest.raises(error, match=match):
                call()
        model = net()
        with pytest.raises(TypeError):
            fully_shard(model, mp_policy=None)
        assert type(model) is nn.Sequential and not isinstance(model[0].weight, tp.DTensor)
        dist.barrier()

    simulate(2, rank)


def test_ignored_parameters() -> None:
    def rank() -> None:
        model = net()
        fully_shard(model, ignored_params={model[0].weight})
        model(wt.ones(2, 6)).sum().backward()
        assert model[0].weight.shape == model[0].weight.grad.shape == (10, 6)
        assert model[2].weight.grad.to_local().shape == (3, 10)

    simulate(2, rank)


def test_ranks_of_different_models_get_an_error() -> None:
    def rank() -> None:
        model = fully_shard(nn.Linear(4, 4 + 4 * dist.get_rank()))
        model(wt.ones(2, 4))

    with pytest.raises(dist.RankFailed, match="ranks differ"):
        simulate(2, rank)


# ------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("there, here", [("zero3", "tp2xzero2"), ("tp2xzero2", "hybrid"), ("hybrid", "one")])
def test_checkpoints_go_from_layout_to_layout(there: str, here: str, tmp_path: Path) -> None:
    shapes = {"one": (1, 1, 1), "zero3": (1, 3, 1), "tp2xzero2": (1, 2, 2), "hybrid": (2, 2, 1)}

    def rank(layout: str) -> Any:
        mesh = dist.init_device_mesh("cpu", shapes[layout], mesh_dim_names=("copies", "dp", "tp"))
        model = layouts.build()
        names = ("copies", "dp") if layout == "hybrid" else "dp"
        if layout == "tp2xzero2":
            tp.parallelize_module(
                model, mesh["tp"], {**layouts.PLAN, "0": tp.RowwiseParallel(), "3": tp.ColwiseParallel()}
            )
        for block in (model[1], model[2], model):
            fully_shard(block, mesh=mesh[names])
        opt = optim.AdamW(model.parameters())
        model(wt.zeros((2, 3), dtype=wt.int64)).sum().backward()
        opt.step()
        return model, [model], opt

    def save() -> None:
        what, modules, opt = rank(there)
        layouts.each(what, modules, opt, layouts.fill)
        checkpoint.save({"model": what, "optimizer": opt}, checkpoint_id=tmp_path / "saved")

    def load() -> int:
        what, modules, opt = rank(here)
        checkpoint.load({"model": what, "optimizer": opt}, checkpoint_id=tmp_path / "saved")
        return layouts.each(what, modules, opt, layouts.compare)

    counts = [functools.reduce(int.__mul__, shapes[layout]) for layout in (there, here)]
    simulate(counts[0], save)
    assert min(simulate(counts[1], load)) > 50
