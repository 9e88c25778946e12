"""Train the digits net of train_digits.py, then give it 8 bits in three ways and compare.

    pip install 'warptape[examples]'
    python examples/quantize_digits.py                 trains for 20 epochs, half a minute in all
    python examples/quantize_digits.py --epochs 5

Shapes: B images of a batch; an image is 8 x 8 pixels of one channel, its label one of ten digits.
"""

from __future__ import annotations

import argparse
import copy
import io
import sys
import time
from typing import Any

import warptape as wt
from warptape.ao import quantization as q

try:
    from train_digits import DigitNet, load_digits, train
except ImportError:  # run from elsewhere
    from examples.train_digits import DigitNet, load_digits, train


@wt.no_grad()
def row(name: str, model: Any, test: Any) -> float:
    """Prints the share that the model names right, the bytes of its state and the time of all test images."""
    images, labels = test.tensors
    right = float((model.eval()(images).argmax(1) == labels).float().mean())
    start = time.perf_counter()
    model(images)
    milliseconds = (time.perf_counter() - start) * 1e3
    state = io.BytesIO()
    wt.save(model.state_dict(), state)
    print(f"{name:34} {right:.4f} right  {len(state.getvalue()) / 1024:6.0f} KiB  {milliseconds:6.2f} ms")
    return right


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training digits (default 20)")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")
    try:
        train_set, test_set = load_digits(0)
    except ImportError:
        print(
            "quantize_digits.py: the digits come with scikit-learn: pip install scikit-learn", file=sys.stderr
        )
        return 2
    wt.manual_seed(0)
    model = DigitNet()
    train(model, train_set, options.epochs, 8e-3)
    model.eval()
    row("float32", model, test_set)

    # 1. Weights of linear layers alone: no data are needed.
    weights = copy.deepcopy(model)
    report = q.quantize_(weights, q.Int8WeightOnlyConfig())
    row("int8 weights of linear layers", weights, test_set)
    print(f"   {report}".replace("\n", "\n   "))

    # 2. Weights and activations of all layers, with ranges seen on some of the training images.
    prepared = q.prepare_fx(model, q.get_default_qconfig_mapping())
    with wt.no_grad():
        for images in train_set.tensors[0][:512].split(64):
            prepared(images)
    row("int8, calibrated", q.convert_fx(prepared), test_set)

    # 3. The same, trained on for an epoch with rounded weights and activations.
    prepared = q.prepare_qat_fx(copy.deepcopy(model).train(), q.get_default_qat_qconfig_mapping())
    train(prepared, train_set, 1, 1e-4)
    row("int8, trained with rounding", q.convert_fx(prepared.eval()), test_set)
    return 0


if __name__ == "__main__":
    sys.exit(main())
