"""The validation loss of a checkpoint of examples/train_gpt.py with its layers packed, in nats a byte.

python examples/train_gpt.py --data stdlib --steps 800 --out run
python benchmarks/quantized_loss.py run/checkpoint.pt
"""

from __future__ import annotations

import contextlib
import copy
import sys
from pathlib import Path

import warptape as wt
from warptape.inference import pack_, quantize_

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from export_gpt import decoder_of
from train_gpt import Text, load_checkpoint, open_text, validate

# (name, most that the loss may rise by, what is done to the model)
KINDS = [
    ("float32, packed", 1e-5, pack_),
    ("int8, a scale an output", 0.002, lambda model: quantize_(model, 8, 0)),
    ("int8, groups of 32", 0.002, lambda model: quantize_(model, 8, 32)),
    ("int4, groups of 32", 0.03, lambda model: quantize_(model, 4, 32)),
    ("int4, groups of 128", float("inf"), lambda model: quantize_(model, 4, 128)),
]


def main() -> None:
    """Prints the losses; the exit status says whether all are within their bounds."""
    path = Path(sys.argv[1])
    state = load_checkpoint(path)
    model = decoder_of(state)
    data = open_text(state["settings"]["data"], path.parent)
    text = Text(data, state["settings"]["block"], "cpu")
    plain = validate(model, text, 16, contextlib.nullcontext())
    print(f"{'float32':26} {plain:.4f}")
    within = True
    for name, bound, convert in KINDS:
        packed = convert(copy.deepcopy(model))
        loss = validate(packed, text, 16, contextlib.nullcontext())
        within &= loss - plain <= bound
        print(f"{name:26} {loss:.4f}  {loss - plain:+.4f}" + (f"  at most {bound}" if bound < 1 else ""))
    sys.exit(not within)


if __name__ == "__main__":
    wt.set_grad_enabled(False)
    main()
