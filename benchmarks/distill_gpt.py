"""A student of the byte GPT of examples/train_gpt.py, alone and with its teacher: nats a byte of each.

    python benchmarks/distill_gpt.py                   about ten minutes on two free cores
    python benchmarks/distill_gpt.py --teacher FILE    a checkpoint of this script, which is not trained again

Both students start from the same weights and see the same batches in the same order.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import warptape as wt
from warptape import ao, nn

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "examples")]

from _harness import machine  # noqa: E402
from train_gpt import GPT, Text, learning_rate, loss_of, make_optimizer, open_text, validate  # noqa: E402

BLOCK, BATCH = 64, 16


def train(
    model: GPT, text: Text, steps: int, peak: float, teacher: GPT | None, options: dict[str, Any]
) -> float:
    """Trains, by cross-entropy or by kd_loss; the loss on the validation part."""
    generator = wt.Generator().manual_seed(7)
    optimizer = make_optimizer(model, peak)
    for step in range(1, steps + 1):
        tokens, targets = text.batch(BATCH, generator)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, peak)
        if teacher is None:
            loss = loss_of(model, tokens, targets)
        else:
            with wt.no_grad():
                taught = teacher(tokens)
            loss = ao.kd_loss(model(tokens), taught, targets, **options)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return validate(model, text, BATCH, contextlib.nullcontext())


def main() -> int:
    parser = argparse.ArgumentParser(description="Distil the byte GPT.")
    parser.add_argument("--teacher", type=Path, help="its weights")
    parser.add_argument("--teacher-steps", type=int, default=800, help="(default 800)")
    parser.add_argument("--steps", type=int, default=800, help="of the students (default 800)")
    parser.add_argument("--layers", type=int, default=2, help="of the students (default 2)")
    parser.add_argument("--width", type=int, default=48, help="of the students (default 48)")
    parser.add_argument("--temperature", type=float, default=1.0, help="(default 1)")
    parser.add_argument("--alpha", type=float, default=0.7, help="(default 0.7)")
    parser.add_argument("--out", type=Path, default=Path("out/distill_gpt"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    text = Text(open_text("stdlib", options.out), BLOCK, "cpu")
    wt.manual_seed(1337)
    teacher, start = GPT(4, 4, 128, BLOCK), time.perf_counter()
    if options.teacher is not None:
        teacher.load_state_dict(wt.load(options.teacher))
        loss = validate(teacher, text, BATCH, contextlib.nullcontext())
    else:
        loss = train(teacher, text, options.teacher_steps, 4e-3, None, {})
        wt.save(teacher.state_dict(), options.out / "teacher.pt")
    teacher.eval()
    print(machine())
    print(f"teacher {loss:.4f} nats after {time.perf_counter() - start:.0f} s", flush=True)
    losses = []
    for taught in (None, teacher):
        wt.manual_seed(1)
        student, start = GPT(options.layers, 4, options.width, BLOCK), time.perf_counter()
        how = {"temperature": options.temperature, "alpha": options.alpha}
        losses.append(train(student, text, options.steps, 6e-3, taught, how))
        name = "alone" if taught is None else f"distilled ({how})"
        print(f"student {name}: {losses[-1]:.4f} nats after {time.perf_counter() - start:.0f} s", flush=True)
    print(f"distilled is better by {losses[0] - losses[1]:.4f} nats")
    return 0


if __name__ == "__main__":
    sys.exit(main())
