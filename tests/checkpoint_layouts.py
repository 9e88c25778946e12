"""One model in ten layouts, each tensor of it filled with values that its name determines.

Shapes: B batch, T sequence, C width, V vocabulary.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import warptape as wt
import warptape.distributed as dist
from warptape import nn, optim
from warptape.distributed.optim import ZeroRedundancyOptimizer
from warptape.parallel import fully_shard, parallelize_module
from warptape.parallel import pipeline as pp
from warptape.parallel.tensor import ColwiseParallel, RowwiseParallel, VocabParallelCrossEntropy

C, V = 8, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(C), nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
        self.drop = nn.Dropout(0.1)
        self.gate = nn.Parameter(wt.ones(C, dtype=wt.bfloat16))
        self.register_buffer("count", wt.zeros((), dtype=wt.int64))
        self.register_buffer("mask", wt.zeros(3, dtype=wt.bool))

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(q * k + v) * self.gate.float()
        return x + self.drop(self.down(self.up(x).relu()))


def build() -> nn.Sequential:
    """Tokens [B, T] -> [B, T, V]; the head is tied to the embedding."""
    embedding, head = nn.Embedding(V, C), nn.Linear(C, V, bias=False)
    head.weight = embedding.weight
    return nn.Sequential(embedding, Block(), Block(), head)


PLAN = {
    "*.qkv": ColwiseParallel(parts=3),
    "*.out": RowwiseParallel(),
    "*.up": ColwiseParallel(),
    "*.down": RowwiseParallel(),
}
LAYOUTS: dict[str, dict[str, int]] = {  # sizes of the mesh's axes
    "one": {"dp": 1},
    "dp2": {"dp": 2},
    "zero2": {"dp": 2},
    "tp2": {"tp": 2},
    "tp4": {"tp": 4},
    "pp2": {"pp": 2},
    "tp2xdp2": {"dp": 2, "tp": 2},
    "pp2xtp2": {"pp": 2, "tp": 2},
    "fsdp3": {"fsdp": 3},  # which divides nothing
    "fsdp2xtp2": {"fsdp": 2, "tp": 2},
}


def ranks_of(layout: str) -> int:
    sizes = LAYOUTS[layout].values()
    return max(sizes) if len(sizes) == 1 else 4


def make(layout: str, model: Any = None) -> tuple[Any, list[Any], Any]:
    """(what a state calls the model, its modules on this rank, its optimizer), stepped once."""
    axes = LAYOUTS[layout]
    mesh = dist.init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    model = build() if model is None else model
    what: Any = model
    if "pp" in axes:
        (what,) = pp.split_into_stages(model, group=mesh["pp"].get_group())
        model = what.submod
    if "tp" in axes:
        plan = dict(PLAN)
        names = dict(model.named_children())
        plan |= {"0": RowwiseParallel()} if "0" in names else {}
        plan |= {"3": ColwiseParallel()} if "3" in names else {}
        parallelize_module(model, mesh["tp"], plan)
    if "fsdp" in axes:
        for module in (model[1], model[2], model):
            fully_shard(module, mesh=mesh["fsdp"])
    kind: Any = ZeroRedundancyOptimizer if layout == "zero2" else optim.AdamW
    how = {"optimizer_class": optim.AdamW} if layout == "zero2" else {}
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = kind(groups, lr=0.125, **how)
    for p in model.parameters():
        p.grad = wt.ones_like(p)
    optimizer.step()
    return what, [model], optimizer


def trainer(layout: str, what: Any, optimizer: Any) -> Callable[[wt.Tensor], list[float]]:
    """A step on tokens [B, T]: the losses that this rank knows."""
    axes = LAYOUTS[layout]
    mesh = dist.init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    loss_of: Any = VocabParallelCrossEntropy(mesh["tp"]) if "tp" in axes else cross_entropy
    schedule = pp.Schedule1F1B(what, 2, loss_of) if "pp" in axes else None

    def step(tokens: wt.Tensor) -> list[float]:
        optimizer.zero_grad()
        losses: list[wt.Tensor] = []
        if schedule is not None:
            schedule.step(tokens, target=tokens, losses=losses)
        else:
            losses = [loss_of(what(tokens), tokens)]
            losses[0].backward()
        optimizer.step()
        return [loss.item() for loss in losses]

    return step


def cross_entropy(logits: wt.Tensor, tokens: wt.Tensor) -> wt.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def expected(name: str, shape: Any, dtype: Any) -> wt.Tensor:
    """The whole of a tensor, as its name determines it."""
    generator = wt.Generator().manual_seed(zlib.crc32(name.encode()))
    return (wt.randn(tuple(shape), generator=generator) * 100).to(dtype)


def first_name(name: str) -> str:
    return "0.weight" if name == "3.weight" else name


def each(model: Any, modules: list[Any], optimizer: Any, visit: Callable[..., None]) -> int:
    """visit(tensor of this rank, what it must be) for everything that a checkpoint holds."""
    seen = 0
    names: dict[int, str] = {}

    def part(name: str, tensor: Any, like: Any) -> wt.Tensor:
        whole = expected(name, tensor.shape, tensor.dtype)
        return tensor.like_full(whole) if hasattr(tensor, "like_full") else whole

    for module in modules:
        for name, tensor in module.state_dict(keep_vars=True).items():
            name = first_name(name)
            names[id(tensor)] = name
            visit(tensor, part(name, tensor, tensor))
            seen += 1
    for group in optimizer.param_groups:
        for p in group["params"]:
            for key, value in sorted(optimizer.state[p].items()) if p in optimizer.state else ():
                visit(value, part(f"{names[id(p)]}/{key}", value, p))
                seen += 1
    return seen


def fill(tensor: wt.Tensor, value: wt.Tensor) -> None:
    with wt.no_grad():
        tensor.copy_(value)


def compare(tensor: wt.Tensor, value: wt.Tensor) -> None:
    assert tensor.dtype == value.dtype
    assert wt.equal(tensor.detach(), value)


def simulate(n: int, rank: Callable[[], Any]) -> list[Any]:
    return dist.simulate(n, rank, timeout=timedelta(seconds=60))
