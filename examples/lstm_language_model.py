"""An LSTM (Hochreiter and Schmidhuber, 1997) that learns to write the source of Python's standard library.

    python examples/lstm_language_model.py
    warptape-run --nproc-per-node 2 examples/lstm_language_model.py     shares every batch among two processes

The loss is in nats per byte; a model that knew only how frequent each byte is would have the unigram loss.

Shapes: B rows of a batch, T bytes of a row, C width, V = 256 values of a byte.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import warptape as wt
import warptape.nn.functional as F
from _common import Parser, batches, read_library, run, share, steps_of_epoch
from warptape import nn, optim
from warptape.utils.data import TensorDataset

BYTES = 600_000
BLOCK = 64


class LanguageModel(nn.Module):
    """Bytes [B, T] and the state before them -> logits [B, T, V] of the next byte, and the state after."""

    def __init__(self, width: int = 192, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.lstm = nn.LSTM(64, width, layers, batch_first=True)
        self.head = nn.Linear(width, 256)
        with wt.no_grad():  # a forget gate that starts open lets gradients far back (Jozefowicz et al., 2015)
            for name, bias in self.lstm.named_parameters():
                if name.startswith("bias_ih"):
                    bias[width : 2 * width] = 1.0

    def forward(
        self, tokens: wt.Tensor, state: tuple[wt.Tensor, wt.Tensor] | None = None
    ) -> tuple[wt.Tensor, tuple[wt.Tensor, wt.Tensor]]:
        hidden, state = self.lstm(self.embedding(tokens), state)  # [B, T, C]
        return self.head(hidden), state


def load_text() -> tuple[TensorDataset, wt.Tensor, float]:
    """Rows to train on, rows to validate on [N, T + 1] and the unigram loss of these, nats per byte."""
    text = read_library(BYTES)
    rows = text[: len(text) // (BLOCK + 1) * (BLOCK + 1)].reshape(-1, BLOCK + 1)
    train, validation = rows[: -len(rows) // 10], rows[-len(rows) // 10 :]
    frequency = np.bincount(train.ravel(), minlength=256) + 1.0  # plus one: no byte is impossible
    unigram = -np.log(frequency / frequency.sum())[validation[:, 1:]].mean()
    return (
        TensorDataset(wt.from_numpy(train.astype(np.int64))),
        wt.from_numpy(validation.astype(np.int64)),
        unigram,
    )


def loss_of(model: nn.Module, rows: wt.Tensor) -> wt.Tensor:
    logits, _ = model(rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


@wt.no_grad()
def write(model: LanguageModel, prompt: bytes, length: int, temperature: float = 0.6) -> str:
    """Goes on from the prompt, a byte at a time; the state carries all that was read."""
    logits, state = model(wt.tensor([list(prompt)]))
    written = bytearray(prompt)
    for _ in range(length):
        drawn = wt.multinomial(F.softmax(logits[:, -1] / temperature, dim=-1), 1)  # [1, 1]
        written.append(int(drawn))
        logits, state = model(drawn, state)
    return written.decode(errors="replace")


def program(options: argparse.Namespace) -> nn.Module:
    data, validation, unigram = load_text()
    model = LanguageModel()
    shared = share(model, options.seed)
    optimizer = optim.AdamW(model.parameters(), lr=5e-3, fused=True)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {data.tensors[0].numel():,} bytes")
    epochs = 1 + options.steps // steps_of_epoch(data, options.batch)
    for step, (rows,) in enumerate(batches(data, options.batch, options.seed, epochs), 1):
        loss = loss_of(shared, rows)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == options.steps:
            break
    with wt.no_grad():
        loss = sum(loss_of(model, part).item() * len(part) for part in validation.split(128)) / len(
            validation
        )
    print(f"validation loss {loss:.4f}, unigram {unigram:.4f}")
    print(f"--- sample\n{write(model, b'def ', 160)}\n---")
    return model


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.number("--steps", 400, "training steps")
    parser.number("--batch", 32, "rows in a step", divided=True)
    sys.exit(run(program, parser))
