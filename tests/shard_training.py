"""Training with sharded parameters against training in one process; as a script, the same by ranks that a
launcher starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import warptape as wt
import warptape.distributed as dist
from tensor_models import GPT2, TOLERANCE, Llama, T, V, gpt2_plan, llama_plan
from tensor_training import OPTIMIZERS, Seen
from warptape import nn
from warptape.parallel import fully_shard
from warptape.parallel import tensor as tp
from warptape.utils.checkpoint import checkpoint

ROWS = 8  # of the whole batch


class Odd(nn.Module):
    """Sizes that no number of ranks divides, parts that some ranks have nothing of, frozen and shared
    parameters, one that the loss does not depend on, a layer that is called twice.

    Tokens [B, T] -> [B, T, V]."""

    def __init__(self, remat: bool = False) -> None:
        super().__init__()
        self.remat = remat
        self.embed, self.drop = nn.Embedding(V + 1, 7), nn.Dropout(0.1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.Dropout(0.2), nn.Linear(13, 7), nn.LayerNorm(7))
            for _ in range(3)
        )
        for frozen in (self.layers[1][0].weight, self.layers[1][3].bias, *self.layers[2].parameters()):
            frozen.requires_grad_(False)
        self.mix = nn.Parameter(wt.tensor([1.0, 0.5, 0.25]))
        self.unused = nn.Parameter(wt.ones(2, 3))
        self.head = nn.Linear(7, V + 1, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: wt.Tensor) -> wt.Tensor:
        x = self.drop(self.embed(tokens))
        for i in (0, 1, 2, 0):
            y = checkpoint(self.layers[i], x, use_reentrant=False) if self.remat else self.layers[i](x)
            x = x + self.mix[i] * y
        return self.head(x)


class Inner(nn.Module):
    """A module that checkpoints its own inside."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleList(
            nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 5)) for _ in range(2)
        )
        self.embed, self.head = nn.Embedding(V, 5), nn.Linear(5, V)

    @property
    def layers(self) -> Any:
        return self.model

    def forward(self, tokens: wt.Tensor) -> wt.Tensor:
        x = self.embed(tokens)
        for layer in self.model:
            x = x + checkpoint(lambda z, layer=layer: layer(z).sin(), x, use_reentrant=False)
        return self.head(x)


def net() -> Any:
    wt.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 6), nn.LayerNorm(6), nn.Linear(6, 3))


MODELS: dict[str, tuple[Callable[[], Any], Callable[..., Any] | None]] = {
    "odd": (Odd, None),
    "gpt2": (GPT2, gpt2_plan),
    "odd_remat": (lambda: Odd(True), None),
    "inner": (Inner, None),
    "llama": (Llama, llama_plan),
    "llama_remat": (lambda: Llama(remat=True), llama_plan),
}


@dataclass(frozen=True)
class Way:
    """How ranks train. `shape` is that of the mesh, (parts,) or (copies, parts)."""

    shape: tuple[int, ...]
    reshard: bool | None = None
    tensor: int = 1  # ranks that split tensors besides
    micro: int = 1  # batches of which the gradients are added up
    sync_last: bool = False  # reduce them only with the last
    last_dim: bool = False  # split matrices along their last dim


def batches(steps: int) -> list[tuple[wt.Tensor, wt.Tensor]]:
    generator = wt.Generator().manual_seed(5)
    both = [wt.randint(V, (ROWS, T + 1), generator=generator) for _ in range(steps)]
    return [(t[:, :-1], t[:, 1:]) for t in both]


def shard(name: str, way: Way, **options: Any) -> tuple[Any, Any, Any]:
    """The model in parts, the mesh that shares the batch, and that which splits tensors or None."""
    model = MODELS[name][0]().to(wt.float64)
    plan = MODELS[name][1]
    blocks = model.h if hasattr(model, "h") else model.layers
    flat = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("all",))
    split = None
    if way.tensor > 1:
        grid = dist.init_device_mesh("cpu", (*way.shape, way.tensor), mesh_dim_names=("dp", "tp"))
        mesh, flat, split = grid["dp"], grid["dp"], grid["tp"]
        assert plan is not None
        tp.parallelize_module(model, split, plan(False))
    else:
        mesh = dist.init_device_mesh("cpu", way.shape)
    if way.last_dim:
        options["shard_placement_fn"] = lambda p: tp.Shard(-1) if p.ndim > 1 else None
    for each in [*blocks, model]:
        fully_shard(each, mesh=mesh, reshard_after_forward=way.reshard, **options)
    return model, flat, split


def train(name: str, optimizer: str, steps: int, way: Way | None = None, micro: int = 1) -> Seen:
    """By step the loss, the norm that clipping finds and the gradients as a whole; the parameters last."""

    def whole(p: Any, value: wt.Tensor | None) -> Any:
        if value is None:
            return wt.ones(1)
        return value.detach().full_tensor().clone() if way else value.detach().clone()

    wt.manual_seed(11)
    net: Any
    loss_of: Any = nn.CrossEntropyLoss()
    around: Any = nullcontext
    at, ranks = 0, 1
    if way is None:
        net = MODELS[name][0]().to(wt.float64)
    else:
        net, flat, split = shard(name, way)
        at, ranks, micro = flat.get_local_rank(), flat.size(), way.micro
        around = partial(tp.split_randomness, flat, 0)
        loss_of = tp.VocabParallelCrossEntropy(split) if split else loss_of
    opt = OPTIMIZERS[optimizer](net.parameters())
    seen: Seen = []
    for tokens, targets in batches(steps):
        opt.zero_grad()
        total = wt.zeros((), dtype=wt.float64)
        for i in range(micro):
            x, y = (t.chunk(micro)[i].chunk(ranks)[at] for t in (tokens, targets))
            if way and way.sync_last:
                net.set_requires_gradient_sync(i == micro - 1)
            with around():
                logits = net(x)
            loss = loss_of(logits.flatten(0, 1), y.flatten()) / micro
            loss.backward()
            total += loss.detach()
        if way:
            dist.all_reduce(total, dist.ReduceOp.AVG, flat.get_group())
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        grads = {k: whole(p, p.grad) for k, p in net.named_parameters()}
        seen.append({"loss": total, "total norm": norm, **grads})
        opt.step()
    seen.append({k: whole(p, p) for k, p in net.named_parameters()})
    return seen


def check(got: Seen, expected: Seen, tolerance: float = TOLERANCE) -> float:
    """The largest difference. Raises AssertionError for the first step, and in it the first tensor, that
    differs by more than is allowed."""
    most = 0.0
    for step, (have, want) in enumerate(zip(got, expected, strict=True)):
        assert have.keys() == want.keys()
        for k, value in have.items():
            assert value.shape == want[k].shape
            error = (value - want[k]).norm().item() / max(want[k].norm().item(), 1e-300)
            most = max(most, error)
            assert error <= tolerance, f"step {step}: {k} differs by {error:.1e}"
    return most


if __name__ == "__main__":
    dist.init_process_group()
    for each in ("odd", "gpt2"):
        for kept in (True, False):
            check(train(each, "adamw", 3, Way((2,), kept)), train(each, "adamw", 3))
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} agrees")
    dist.destroy_process_group()
