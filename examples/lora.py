"""Low-rank adaptation (LoRA; Hu et al., arXiv:2106.09685) of a byte GPT from Python's source to English.

    python examples/lora.py
    warptape-run --nproc-per-node 2 examples/lora.py       shares every batch among two processes

A GPT learns the standard library's source. Then its weights W [O, I] stay, and factors A [R, I] and B [O, R]
learn the language reference's prose: a layer gives W x + B A x. They can be taken away again, or added to the
weights for good. Losses are in nats per byte.

Shapes: B rows of a batch, T = 64 bytes of a row, R rank of the factors.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import warptape as wt
from _common import Parser, read_library, run, share
from train_gpt import GPT, Text, autocast, learning_rate, make_optimizer, training_step, validate
from warptape import nn, optim
from warptape.models import Adapter
from warptape.models.adapters import Factors

BLOCK, BYTES = 64, 400_000
CAST = autocast("cpu", "float32")


def read_prose() -> np.ndarray:
    """The help pages of Python's language reference, as uint8 [bytes]."""
    from pydoc_data.topics import topics

    return np.frombuffer("\n".join(topics.values()).encode(), dtype=np.uint8)[:BYTES]


def train(name: str, model: GPT, optimizer: Any, lr: float, text: Text, options: argparse.Namespace) -> None:
    """Trains on random rows of the text, with the learning rates of train_gpt.py up to `lr`."""
    shared, generator = share(model, options.seed), wt.Generator().manual_seed(options.seed)
    for step in range(1, options.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, lr)
        loss = training_step(shared, optimizer, text.batch(options.batch, generator), CAST)
        if step % 50 == 0:
            print(f"{name} step {step} loss {loss.item():.4f}", flush=True)


def add_factors(model: GPT, rank: int) -> Adapter:
    """Freezes the model and gives its layers' projections factors, which are parameters of the model, too."""
    model.requires_grad_(False)
    factors = {}
    for name, layer in model.layers.named_modules(prefix="layers"):
        if isinstance(layer, nn.Linear):
            # B is zero at first: the model starts from what it was. A is not, or nothing would ever move.
            layer.lora_a = nn.Parameter(wt.randn(rank, layer.in_features) / layer.in_features**0.5)
            layer.lora_b = nn.Parameter(wt.zeros(layer.out_features, rank))
            factors[name] = Factors(layer.lora_a, layer.lora_b)
    return Adapter(model, factors)


def program(options: argparse.Namespace) -> nn.Module:
    code, prose = (Text(text, BLOCK, "cpu") for text in (read_library(BYTES), read_prose()))

    def losses(when: str) -> tuple[float, float]:
        of_code, of_prose = (validate(model, text, options.batch, CAST) for text in (code, prose))
        print(f"{when}: code {of_code:.4f}, prose {of_prose:.4f}", flush=True)
        return of_code, of_prose

    model = GPT(2, 4, 128, BLOCK)
    train("base", model, make_optimizer(model, 4e-3), 4e-3, code, options)
    losses("base")
    adapter = add_factors(model, options.rank)
    learning = [p for p in model.parameters() if p.requires_grad]
    count, total = (sum(p.numel() for p in some) for some in (learning, model.parameters()))
    print(f"{count:,} of {total:,} parameters learn: {count / total:.1%}")
    adapter.attach()
    train("adapter", model, optim.AdamW(learning, weight_decay=0.0), 1e-2, prose, options)
    losses("adapted")
    tokens, _ = next(prose.validation_batches(8))
    with wt.no_grad():
        attached = model(tokens)
        adapter.remove()
        losses("removed")
        adapter.merge()
        difference = (model(tokens) - attached).abs().max().item()
    losses("merged")
    print(f"merged, it gives logits that differ by {difference:.6f} at most")
    return model


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.number("--steps", 300, "training steps of the base, and of the factors")
    parser.number("--batch", 16, "rows in a step", divided=True)
    parser.number("--rank", 8, "R, the rank of the factors")
    sys.exit(run(program, parser))
