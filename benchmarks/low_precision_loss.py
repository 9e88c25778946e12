"""The validation loss of examples/train_gpt.py trained by recipes of few bits, in nats a byte.

python benchmarks/low_precision_loss.py --steps 800 mxfp8_gw_hp float8 float8_rows mxfp4 nvfp4

Beside bfloat16, with the same start, batches and schedule; the head stays in bfloat16. Afterwards it prints
which layers of the model trained in bfloat16 break, recipe by recipe.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from pathlib import Path

import warptape as wt
from warptape.ao.low_precision import (
    RECIPES,
    LowPrecisionLinear,
    convert_to_low_precision_training,
    precision_report,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from train_gpt import (
    DEFAULTS,
    Run,
    Text,
    autocast,
    learning_rate,
    loss_of,
    open_text,
    training_step,
    validate,
)

BOUND = 0.005  # nats


def blocks(module: wt.nn.Module, path: str) -> bool:
    """The linear layers of the blocks, not the head."""
    return path.startswith("layers.")


def trained(recipe: str | None, text: Text, data: object, steps: int) -> tuple[Run, float]:
    """The run after its steps, and its validation loss."""
    run = Run({**DEFAULTS, "dtype": "bfloat16"}, "cpu", data)  # type: ignore[arg-type]
    if recipe is not None:
        convert_to_low_precision_training(run.model, recipe, module_filter_fn=blocks)
        for number, layer in enumerate(run.model.modules()):
            if isinstance(layer, LowPrecisionLinear):
                layer.generator = wt.Generator().manual_seed(number)
    for step in range(1, steps + 1):
        for group in run.optimizer.param_groups:
            group["lr"] = learning_rate(step, DEFAULTS["lr"])
        batch = text.batch(DEFAULTS["batch"], run.generator)
        training_step(run.model, run.optimizer, batch, autocast("cpu", "bfloat16"))
    return run, validate(run.model, text, DEFAULTS["batch"], autocast("cpu", "bfloat16"))


def main() -> None:
    """Prints losses and reports; the exit status says whether the 8-bit recipes are within the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", choices=[*RECIPES, []], default=["mxfp8_gw_hp"])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--out", type=Path, default=Path("out"))
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True)
    data = open_text(None, given.out)
    text = Text(data, DEFAULTS["block"], "cpu")
    within = True
    start = time.perf_counter()
    plain, loss = trained(None, text, data, given.steps)
    print(f"{'bfloat16':12} {loss:.4f}  {time.perf_counter() - start:.0f} s", flush=True)
    for recipe in given.recipes:
        start = time.perf_counter()
        _, found = trained(recipe, text, data, given.steps)
        within &= abs(found - loss) <= BOUND or "8" not in recipe
        seconds = time.perf_counter() - start
        print(f"{recipe:12} {found:.4f}  {found - loss:+.4f}  {seconds:.0f} s", flush=True)
    inputs, targets = text.batch(DEFAULTS["batch"], wt.Generator().manual_seed(1))
    step = functools.partial(loss_of, tokens=inputs, targets=targets)
    for recipe in given.recipes:
        print(f"\n{recipe}\n{precision_report(plain.model, step, recipe, module_filter_fn=blocks)}")
    sys.exit(not within)


if __name__ == "__main__":
    main()
