"""A byte GPT with mixtures of experts (Shazeer et al., arXiv:1701.06538; Fedus et al., arXiv:2101.03961).

    python examples/mixture_of_experts.py
    warptape-run --nproc-per-node 2 examples/mixture_of_experts.py      shares the batches and the experts out

Each byte goes through two of eight experts in place of a layer's feed-forward network. A dense GPT to compare
has as many weights at work on a byte, within a hundredth. The loss is in nats per byte.

Shapes: B rows of a batch, T = 64 bytes of a row, C width, E experts.
"""

from __future__ import annotations

import argparse
import sys

import warptape as wt
from _common import Parser, ranks, read_library, run, share
from train_gpt import GPT, InputError, Text, autocast, learning_rate, loss_of, make_optimizer, validate
from warptape import nn
from warptape.parallel.experts import MixtureOfExperts, expert_parallel

BLOCK, WIDTH, LAYERS, EXPERTS = 64, 96, 3, 8


def with_experts(model: GPT) -> GPT:
    """The model with a mixture in place of each feed-forward network; its experts are shared out."""
    for layer in model.layers:
        # Two experts of three matrices [C, 4/3 C] are as large as two of [C, 4 C].
        layer.mlp = MixtureOfExperts(WIDTH, 4 * WIDTH // 3, EXPERTS, top_k=2)
    return expert_parallel(model) if ranks()[1] > 1 else model


def mixtures(model: nn.Module) -> list[MixtureOfExperts]:
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


def train(name: str, model: GPT, text: Text, options: argparse.Namespace) -> float:
    """Trains on random rows of the text; the validation loss."""
    shared = share(model, options.seed)
    optimizer = make_optimizer(model, 4e-3)
    generator = wt.Generator().manual_seed(options.seed)
    for step in range(1, options.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, 4e-3)
        of_text = loss_of(shared, *text.batch(options.batch, generator))
        # Else a few experts, a little better at the start, would get all bytes, and all the learning.
        loss = of_text + sum(mixture.loss(balance=1e-2) for mixture in mixtures(model))
        optimizer.zero_grad()
        loss.backward()  # no clipping: the processes have other experts, and so other norms of the gradient
        optimizer.step()
        if step % 50 == 0:
            print(f"{name} step {step} loss {of_text.item():.4f}", flush=True)
    return validate(model, text, options.batch, autocast("cpu", "float32"))


def program(options: argparse.Namespace) -> nn.Module:
    if EXPERTS % ranks()[1]:
        raise InputError(f"{EXPERTS} experts do not divide among {ranks()[1]} processes")
    text = Text(read_library(400_000), BLOCK, "cpu")
    models = {
        "dense": GPT(LAYERS, 4, WIDTH, BLOCK),
        "mixture": with_experts(GPT(LAYERS, 4, WIDTH, BLOCK)),
    }
    losses = {}
    for name, model in models.items():
        print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters on this process")
        losses[name] = train(name, model, text, options)
    loads = wt.stack([mixture.router.counts for mixture in mixtures(models["mixture"])])  # [layers, E]
    loads = loads / loads.mean(dim=1, keepdim=True)
    print(f"an expert had {loads.min().item():.2f} to {loads.max().item():.2f} times its part of the bytes")
    print(f"validation loss {losses['mixture']:.4f} with experts, {losses['dense']:.4f} without")
    return models["mixture"]


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.number("--steps", 400, "training steps of each model")
    parser.number("--batch", 16, "rows in a step", divided=True)
    sys.exit(run(program, parser))
