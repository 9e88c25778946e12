"""Training split among ranks against training in one process; as a script, the same by ranks that a launcher
starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import warptape as wt
import warptape.distributed as dist
from tensor_models import MODELS, TOLERANCE, batches, mesh, simulate
from warptape import nn, optim
from warptape.parallel import tensor as tp

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=1e-2, weight_decay=0.1),
}
Seen = list[dict[str, wt.Tensor]]


def train(name: str, optimizer: str, steps: int, plan: Any = None, dtype: Any = wt.float64) -> Seen:
    """By step the loss, the norm that clipping finds and the gradients as a whole; the parameters last."""

    def whole(p: Any, value: wt.Tensor) -> wt.Tensor:
        return p.full_tensor(value) if isinstance(p, tp.ParallelParameter) else value.detach()

    build, _, vocabulary = MODELS[name]
    wt.manual_seed(11)
    model = build().to(dtype)
    loss_of: Any = nn.CrossEntropyLoss()
    if plan is not None:
        tp.parallelize_module(model, mesh(), plan)
        loss_of = tp.VocabParallelCrossEntropy(mesh())
    opt = OPTIMIZERS[optimizer](model.parameters())
    seen: Seen = []
    for tokens, targets in batches(steps, vocabulary):
        opt.zero_grad()
        loss = loss_of(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
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


def compare(name: str, optimizer: str, steps: int, plan: Callable[[], Any], ranks: int) -> None:
    """Raises AssertionError when ranks of a simulated world train otherwise than one process."""
    expected = train(name, optimizer, steps)
    simulate(ranks, lambda: check(train(name, optimizer, steps, plan()), expected))


if __name__ == "__main__":
    dist.init_process_group()
    for each in ("gpt2", "llama"):
        check(train(each, "adamw", 3, MODELS[each][1](True)), train(each, "adamw", 3))
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} agrees")
    dist.destroy_process_group()
