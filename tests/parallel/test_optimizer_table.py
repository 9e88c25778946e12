"""Every optimizer in every layout: the parameters after some steps are those of one process.

Run as a script it prints the table of docs/guides/tensor_parallel.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from tensor_models import simulate
from warptape import nn, optim
from warptape.nn import functional as F
from warptape.parallel import fully_shard
from warptape.parallel import tensor as tp
from warptape.parallel.experts import Experts, MixtureOfExperts, expert_parallel

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1e-2, "momentum": 0.9, "weight_decay": 1e-2},
    "Adam": {"lr": 1e-3, "amsgrad": True},
    "AdamW": {"lr": 1e-3},
    "AdamW, decay of matrices": {"lr": 1e-3, "weight_decay": 0.1},
    "Adamax": {"lr": 1e-3},
    "NAdam": {"lr": 1e-3},
    "RAdam": {"lr": 1e-3},
    "Adagrad": {"lr": 1e-3},
    "Adadelta": {},
    "RMSprop": {"lr": 1e-4, "momentum": 0.9},
    "Rprop": {"lr": 1e-3},
    "ASGD": {"lr": 1e-2},
    "Adafactor": {"lr": 1e-2},
    "Muon": {"lr": 1e-3},
    "LBFGS": {"lr": 1e-1, "max_iter": 3},
}
# In float32 LBFGS makes much of roundings, also in one process: it divides by differences of gradients.
DTYPES = {"LBFGS": wt.float64}
IN_BACKWARD = ["AdamW", "Adafactor", "Muon"]
ROWS, STEPS = 8, 4


class Net(nn.Module):
    """[B, 6] -> [B, 5]; sizes that do not divide, a mixture of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(6, 10), nn.Linear(10, 7), nn.Linear(7, 5)
        self.norm, self.mixture = nn.LayerNorm(7), MixtureOfExperts(7, 4, 4, 2)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        x = self.norm(self.down(self.up(x).tanh()))
        return self.head(x + self.mixture(x))


def fsdp(sizes: tuple[int, ...], reshard: bool | None) -> Callable[[Any], Any]:
    def apply(model: Any) -> Any:
        mesh = dist.init_device_mesh("cpu", sizes)
        for each in (model.up, model.down, model.mixture, model):
            fully_shard(each, mesh=mesh, reshard_after_forward=reshard)
        return model

    return apply


def tensor(sizes: tuple[int, ...]) -> Callable[[Any], Any]:
    def apply(model: Any) -> Any:
        names = ("dp", "tp")[2 - len(sizes) :]
        grid = dist.init_device_mesh("cpu", sizes, mesh_dim_names=names)
        plan = {"up": tp.ColwiseParallel(), "down": tp.RowwiseParallel()}
        tp.parallelize_module(model, grid["tp"], plan)
        return fully_shard(model, mesh=grid["dp"]) if "dp" in names else model

    return apply


def experts(sizes: tuple[int, ...]) -> Callable[[Any], Any]:
    """All ranks have the same rows, so that of gradients no mean over ranks is to be taken."""

    def apply(model: Any) -> Any:
        names = ("dp", "ep")[2 - len(sizes) :]
        grid = dist.init_device_mesh("cpu", sizes, mesh_dim_names=names)
        expert_parallel(model, grid["ep"])
        if "dp" in names:
            fully_shard(model.mixture.experts, mesh=grid["dp"])
            fully_shard(model, mesh=grid["dp"])
        return model

    return apply


# (ranks, what splits the model)
LAYOUTS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "ZeRO 1": (2, lambda model: model),
    "ZeRO 2": (2, fsdp((2,), False)),
    "fully_shard": (3, fsdp((3,), True)),
    "HSDP": (4, fsdp((2, 2), None)),
    "TP": (2, tensor((2,))),
    "FSDP x TP": (4, tensor((2, 2))),
    "EP": (2, experts((2,))),
    "FSDP x EP": (4, experts((2, 2))),
}
SHARES: dict[str, Any] = {"ZeRO 1": {"shares": True}}


def trained(optimizer: str, split: Any = None, shares: bool = False) -> list[wt.Tensor]:
    options, dtype = OPTIMIZERS[optimizer], DTYPES.get(optimizer, wt.float32)
    wt.manual_seed(5)
    model = Net().to(dtype)
    draw = wt.Generator().manual_seed(6)
    x, y = wt.randn(ROWS, 6, generator=draw).to(dtype), wt.randn(ROWS, 5, generator=draw).to(dtype)
    if split is not None:
        split(model)
    kind = getattr(optim, optimizer.partition(",")[0])
    params: Any = [p for p in model.parameters() if optimizer != "Muon" or p.ndim == 2]
    groups = params
    if "decay" in optimizer:
        vectors = [p for p in params if p.ndim < 2]
        groups = [
            {"params": [p for p in params if p.ndim >= 2]},
            {"params": vectors, "weight_decay": 0.0},
        ]
    shared = dist.optim.ZeroRedundancyOptimizer
    opt: Any = shared(groups, kind, **options) if shares else kind(groups, **options)

    def closure() -> Any:
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 0.5)
        return loss

    for _ in range(STEPS):
        opt.step(closure)
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach() for p in model.parameters()]


def trained_in_backward(optimizer: str, split: Any = None) -> list[wt.Tensor]:
    """Each parameter by an optimizer of its own, once its gradient is there, as torchtitan does it."""
    wt.manual_seed(5)
    model: Any = Net()
    draw = wt.Generator().manual_seed(6)
    x, y = wt.randn(ROWS, 6, generator=draw), wt.randn(ROWS, 5, generator=draw)
    if split is not None:
        split(model)
    params = [p for p in model.parameters() if optimizer != "Muon" or p.ndim == 2]
    steps = {p: getattr(optim, optimizer)([p], **OPTIMIZERS[optimizer]) for p in params}

    def step(p: Any) -> None:
        steps[p].step()
        steps[p].zero_grad()

    for p in params:
        p.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        F.mse_loss(model(x), y).backward()
        assert all(p.grad is None for p in params)
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach() for p in model.parameters()]


def difference(
    optimizer: str, layout: str, train: Callable[..., list[wt.Tensor]] = trained, **more: Any
) -> float:
    """The largest of a parameter to that of one process."""
    ranks, split = LAYOUTS[layout]

    def rank() -> float:
        got = train(optimizer, split, **more)
        return max((a - b).abs().max().item() for a, b in zip(got, want, strict=True))

    want = train(optimizer)
    return max(simulate(ranks, rank))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_are_those_of_one_process(optimizer: str, layout: str) -> None:
    if (optimizer, layout) == ("LBFGS", "ZeRO 1"):
        with pytest.raises(dist.RankFailed, match="reads all parameters"):
            difference(optimizer, layout, shares=True)
        return
    assert difference(optimizer, layout, **SHARES.get(layout, {})) <= 1e-6


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout not in SHARES])
@pytest.mark.parametrize("optimizer", IN_BACKWARD)
def test_in_backward_they_are_too(optimizer: str, layout: str) -> None:
    """Muon and Adafactor gather in the middle of backward, between the collectives of the layout."""
    assert difference(optimizer, layout, trained_in_backward) <= 1e-6


@pytest.mark.parametrize(
    ("optimizer", "layout", "where", "name", "value"),
    [
        ("Muon", "fully_shard", optim.Muon, "update_scope", "element"),  # of this rank's rows
        ("Adafactor", "TP", optim.Adafactor, "update_scope", "element"),
        ("SGD", "ZeRO 2", tp.DTensor, "norm_groups", ()),  # each rank clips by its own norm
        ("SGD", "EP", Experts, "ranks", property(lambda self: 1, lambda self, n: None)),
    ],
)
def test_planted_bugs_are_found(
    optimizer: str, layout: str, where: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, value)
    assert difference(optimizer, layout) > 1e-5


def row(optimizer: str, train: Callable[..., list[wt.Tensor]], refused: list[str]) -> str:
    cells = []
    for layout in LAYOUTS:
        more = SHARES.get(layout, {}) if train is trained else {}
        refuses = layout in refused
        cells.append("refused" if refuses else f"{difference(optimizer, layout, train, **more):.0e}")
    return " | ".join("0" if cell == "0e+00" else cell for cell in cells)


if __name__ == "__main__":
    print(f"| | {' | '.join(LAYOUTS)} |")
    print("|" + "---|" * (len(LAYOUTS) + 1))
    for name in OPTIMIZERS:
        print(f"| {name} | {row(name, trained, ['ZeRO 1'] if name == 'LBFGS' else [])} |", flush=True)
    for name in IN_BACKWARD:
        cells = row(name, trained_in_backward, list(SHARES)).replace("refused", "-")
        print(f"| {name} in backward | {cells} |", flush=True)
