"""Training runs of `parallelize`'s layouts, and of one process, to be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import warptape as wt
from tensor_models import GPT2, TOLERANCE, T, V
from tensor_training import OPTIMIZERS
from warptape import nn, optim
from warptape.parallel import tensor as tp
from warptape.parallel.context import positions

ROWS = 16
Seen = list[dict[str, Any]]
KINDS: dict[str, tuple[Any, dict[str, float]]] = {  # those of OPTIMIZERS, for model.optimizer
    "sgd": (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adamw": (optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
}


class Start(nn.Module):
    """Tokens [B, T] -> [B, T, C]."""

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = model.wte, model.wpe, model.drop

    def forward(self, tokens: wt.Tensor) -> wt.Tensor:
        return self.drop(self.wte(tokens) + self.wpe(positions(tokens.shape[1])))


def batches(steps: int) -> list[tuple[wt.Tensor, wt.Tensor]]:
    generator = wt.Generator().manual_seed(5)
    both = [wt.randint(V, (ROWS, T + 1), generator=generator) for _ in range(steps)]
    return [(t[:, :-1], t[:, 1:]) for t in both]


def loss_by(measure: Callable[..., wt.Tensor]) -> Callable[..., wt.Tensor]:
    return lambda logits, target: measure(logits.flatten(0, 1), target.flatten())


def whole(p: Any) -> wt.Tensor:
    """The whole of a parameter's gradient."""
    return p.grad.full_tensor().clone() if isinstance(p, tp.DTensor) else p.grad.clone()


def plain_run(
    model: Any, loss_of: Any, optimizer: str, steps: int, after: Callable[[Any], None] = lambda model: None
) -> Seen:
    """In one process: by step loss, norm and gradients; the state last. `after` follows a step."""
    opt = OPTIMIZERS[optimizer](model.parameters())
    seen: Seen = []
    for tokens, targets in batches(steps):
        opt.zero_grad()
        loss = loss_of(model(tokens), targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grads = {k: p.grad.clone() for k, p in model.named_parameters()}
        seen.append({"loss": loss.detach(), "total norm": norm, **grads})
        opt.step()
        after(model)
    return [*seen, {k: v.clone() for k, v in model.state_dict().items()}]


def layout_run(
    model: Any, mesh: Any, optimizer: str, steps: int, after: Callable[[Any], None] = lambda model: None
) -> Seen:
    """As plain_run, of a ParallelModel on its mesh; gradients as a whole, of what this rank has."""
    cls, given = KINDS[optimizer]
    opt = model.optimizer(cls, **given)
    there = "dp" in mesh.mesh_dim_names
    ranks, at = (mesh.size("dp"), mesh.get_local_rank("dp")) if there else (1, 0)
    seen: Seen = []
    for tokens, targets in batches(steps):
        model.zero_grad()
        loss = model.step(tokens.chunk(ranks)[at], target=targets.chunk(ranks)[at])
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grads = {k: whole(p) for k, p in model.named_parameters()}
        seen.append({"loss": loss, "total norm": norm, **grads})
        opt.step()
        after(model)
    return [*seen, model.full_state_dict()]


def check(got: Seen, expected: Seen) -> tuple[float, set[str]]:
    """The largest difference of what this rank has, and what it has. Raises AssertionError where it is too
    large."""
    most = 0.0
    for step, (have, want) in enumerate(zip(got, expected, strict=True)):
        assert have.keys() <= want.keys()
        for k, value in have.items():
            assert value.shape == want[k].shape, k
            error = (value - want[k]).norm().item() / max(want[k].norm().item(), 1e-300)
            most = max(most, error)
            assert error <= TOLERANCE, f"step {step}: {k} differs by {error:.1e}"
    assert got[-1].keys() == expected[-1].keys()
    return most, set(got[0])
