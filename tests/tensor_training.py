"""Training split among ranks against training in one process; as a script, the same by ranks that a launcher
starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import warptape as wt
import warptape.distributed as dist
from tensor_models import MODELS, TOLERANCE, batches, simulate
from warptape import nn, optim
from warptape.nn.parallel import DistributedDataParallel
from warptape.parallel import tensor as tp

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=1e-2, weight_decay=0.1),
}
Seen = list[dict[str, wt.Tensor]]


def train(
    name: str, optimizer: str, steps: int, plan: Any = None, dtype: Any = wt.float64, copies: int = 1
) -> Seen:
    """By step the loss, the norm that clipping finds and the gradients as a whole; the parameters last. With
    `copies` of the model, each split by the plan, they share the batch."""

    def whole(p: Any, value: wt.Tensor) -> wt.Tensor:
        return value.detach().full_tensor().clone() if isinstance(p, tp.DTensor) else value.detach().clone()

    build, _, vocabulary = MODELS[name]
    wt.manual_seed(11)
    model = build().to(dtype)
    net: Any = model
    loss_of: Any = nn.CrossEntropyLoss()
    around: Any = nullcontext
    at = 0
    if plan is not None:
        shape = (copies, dist.get_world_size() // copies)
        grid = dist.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
        tp.parallelize_module(model, grid["tp"], plan)
        net = DistributedDataParallel(model, process_group=grid["dp"].get_group()) if copies > 1 else model
        loss_of, at = tp.VocabParallelCrossEntropy(grid["tp"]), grid.get_local_rank("dp")
        around = partial(tp.split_randomness, grid["dp"], 0)
    opt = OPTIMIZERS[optimizer](model.parameters())
    seen: Seen = []
    for tokens, targets in batches(steps, vocabulary):
        opt.zero_grad()
        with around():
            logits = net(tokens.chunk(copies)[at])
        loss = loss_of(logits.flatten(0, 1), targets.chunk(copies)[at].flatten())
        loss.backward()
        if copies > 1:
            dist.all_reduce(loss.detach(), dist.ReduceOp.AVG, grid["dp"].get_group())
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grads = {k: whole(p, p.grad) for k, p in model.named_parameters()}
        seen.append({"loss": loss.detach(), "total norm": norm, **grads})
        opt.step()
    seen.append({k: whole(p, p) for k, p in model.named_parameters()})
    return seen


def check(got: Seen, expected: Seen, tolerance: float = TOLERANCE) -> None:
    """Raises AssertionError for the first step, and in it the first tensor, that differs."""
    for step, (have, want) in enumerate(zip(got, expected, strict=True)):
        assert have.keys() == want.keys()
        for k, value in have.items():
            error = (value - want[k]).norm().item() / want[k].norm().item()
            assert error <= tolerance, f"step {step}: {k} differs by {error:.1e}"


def compare(
    name: str, optimizer: str, steps: int, plan: Callable[[], Any], ranks: int, copies: int = 1
) -> None:
    """Raises AssertionError when ranks of a simulated world train otherwise than one process."""
    expected = train(name, optimizer, steps)
    simulate(ranks, lambda: check(train(name, optimizer, steps, plan(), copies=copies), expected))


if __name__ == "__main__":
    dist.init_process_group()
    for each in ("gpt2", "llama"):
        check(train(each, "adamw", 3, MODELS[each][1](True)), train(each, "adamw", 3))
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} agrees")
    dist.destroy_process_group()
