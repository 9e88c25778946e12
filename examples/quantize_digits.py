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
import warptape.nn.functional as F
from warptape.ao import quantization as q
from warptape.utils.data import DataLoader

try:
    from train_digits import DigitNet, load_digits, shifted
except ImportError:  # run from elsewhere
    from examples.train_digits import DigitNet, load_digits, shifted


def train(model: Any, data: Any, epochs: int, lr: float) -> Any:
    """The model after so many passes over the data."""
    loader = DataLoader(data, batch_size=64, shuffle=True)
    optimizer = wt.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)
    schedule = wt.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(loader))
    for _ in range(epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(shifted(images)), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


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
    model = train(DigitNet(), train_set, options.epochs, 8e-3)
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
    row("int8, trained with rounding", q.convert_fx(train(prepared, train_set, 1, 1e-4)), test_set)
    return 0


if __name__ == "__main__":
    sys.exit(main())
