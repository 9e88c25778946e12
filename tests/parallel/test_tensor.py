"""Tensor and sequence parallelism in the simulated world: the same training run as one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from tensor_models import (
    MODELS,
    TOLERANCE,
    Colwise,
    Replicate,
    batches,
    fused_plan,
    gpt_plan,
    mesh,
    model_plan,
    simulate,
)
from warptape import nn, optim
from warptape.parallel import tensor as tp

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=1e-2, weight_decay=0.1),
}


# -------------------------------------------------------------------------------- comparison


def whole(p: Any, value: wt.Tensor) -> wt.Tensor:
    return p.full_tensor(value) if isinstance(p, tp.ParallelParameter) else value


def train(name: str, optimizer: str, steps: int, plan: Any = None) -> list[tuple[wt.Tensor, dict]]:
    """Loss, and gradients as a whole, of each step; norms are clipped on the way."""
    build, _, vocabulary = MODELS[name]
    wt.manual_seed(11)
    model = build().double()
    if plan is not None:
        tp.parallelize_module(model, mesh(), plan)
    loss_of: Any = tp.VocabParallelCrossEntropy(mesh()) if plan is not None else nn.CrossEntropyLoss()
    opt = OPTIMIZERS[optimizer](model.parameters())
    seen = []
    for tokens, targets in batches(steps, vocabulary):
        opt.zero_grad()
        loss = loss_of(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grads = {k: whole(p, p.grad) for k, p in model.named_parameters()}
        seen.append((loss.detach(), {"total norm": norm, **grads}))
        opt.step()
    seen.append((seen[-1][0], {k: whole(p, p.detach()) for k, p in model.named_parameters()}))
    return seen


def compare(name: str, optimizer: str, steps: int, plan: Any, ranks: int) -> None:
    """Raises AssertionError for the first step, and in it the first tensor, that differs from one process."""
    expected = train(name, optimizer, steps)

    def rank() -> None:
        got = train(name, optimizer, steps, plan())
        for step, ((loss, grads), (want_loss, wanted)) in enumerate(zip(got, expected, strict=True)):
            tensors = {"loss": (loss, want_loss), **{k: (g, wanted[k]) for k, g in grads.items()}}
            assert grads.keys() == wanted.keys()
            for k, (g, w) in tensors.items():
                error = (g - w).norm().item() / w.norm().item()
                assert error <= TOLERANCE, f"step {step}: {k} differs by {error:.1e}"

    simulate(ranks, rank)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(
    "name, sequence",
    [("gpt", False), ("gpt", True), ("model", False), ("model", True), ("composed", False), ("fused", False)],
)
def test_training_equals_one_process(name: str, sequence: bool, optimizer: str, ranks: int) -> None:
    compare(name, optimizer, 20, lambda: MODELS[name][1](sequence), ranks)


@pytest.mark.parametrize("sequence", [False, True])
def test_checkpointed_layers(sequence: bool) -> None:
    compare("remat", "sgd", 3, lambda: model_plan(sequence), 2)


def test_one_rank() -> None:
    compare("gpt", "adamw", 3, lambda: gpt_plan(True), 1)


# ------------------------------------------------------------------------------ planted bugs


def no_forward_sum(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    real = tp.layers.redistribute
    partial = tp.Partial()
    patch.setattr(tp.layers, "redistribute", lambda x, h, w, m: x if h == partial else real(x, h, w, m))
    return model_plan()


def no_backward_sum(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(tp.layers, "for_split_work", lambda x, have, m: x)
    return model_plan()


def doubled_bias(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    def forward(self: Any, input: wt.Tensor) -> wt.Tensor:
        return tp.redistribute(F.linear(input, self.weight, self.bias), tp.Partial(), Replicate(), self.mesh)

    patch.setattr(tp.RowParallelLinear, "forward", forward)
    return model_plan()


def wrong_head_split(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return fused_plan() | {"attn.c_attn": Colwise()}


def norm_outside(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    plan = model_plan(True)
    del plan["layers.*.norm?"]
    return plan


def dropout_of_each_rank(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    plan = model_plan()
    del plan["layers.*.inner_drop"]
    return plan


def attention_dropout_of_each_rank(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    real = tp.random._enter
    patch.setattr(tp.random, "_enter", lambda m, dim, heads: real(m, dim, False))
    return model_plan()


def bias_not_summed(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(tp.RowParallelLinear, "_taken_over", lambda self: None)
    return model_plan(True)


BUGS = {
    f.__name__: f
    for f in (
        no_forward_sum,
        no_backward_sum,
        doubled_bias,
        wrong_head_split,
        norm_outside,
        dropout_of_each_rank,
        attention_dropout_of_each_rank,
        bias_not_summed,
    )
}


@pytest.mark.parametrize("bug", list(BUGS))
def test_comparison_finds_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = BUGS[bug](monkeypatch)
    with pytest.raises(dist.RankFailed, match=r"step 0: .* differs by"):
        compare("fused" if bug == "wrong_head_split" else "model", "sgd", 1, lambda: plan, 2)
