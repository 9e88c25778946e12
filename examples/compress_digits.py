"""Make the digits net of train_digits.py smaller, by one method, and say what that costs and gains.

    pip install 'warptape[examples]'
    python examples/compress_digits.py prune        half of the channels, fine-tuned: smaller and faster
    python examples/compress_digits.py masks        nine weights of ten masked while it trains
    python examples/compress_digits.py binarise     a net of one bit a weight, trained from the start
    python examples/compress_digits.py distill      a small student beside the same student alone
    python examples/compress_digits.py prune --save small.safetensors     and a program to run without Python

The trained net is kept under --cache, where the next method finds it. Each takes less than two minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import warptape as wt
from warptape import ao, nn, optim
from warptape.export import Dim, export, save
from warptape.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parent))

from train_digits import DigitNet, accuracy, load_digits, shifted, train


class BinaryDigitNet(nn.Module):
    """DigitNet with one bit a weight but in its first and last layer: [B, 1, 8, 8] -> logits [B, 10].

    The norm stands in front of each binarised layer and no ReLU behind it, as in "XNOR-Net", section 3.2.
    """

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),  # [B, C, 8, 8]
            nn.BatchNorm2d(channels),
            ao.BinaryConv2d(channels, channels, 3, padding=1, bias=False),
            nn.MaxPool2d(2),  # [B, C, 4, 4]
            nn.BatchNorm2d(channels),
            ao.BinaryConv2d(channels, 2 * channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * channels),  # [B, 2 C, 4, 4]
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(2 * channels * 16, 10))

    def forward(self, images: wt.Tensor) -> wt.Tensor:
        return self.head(self.features(images))


def trained(data: TensorDataset, cache: Path, seed: int, epochs: int) -> DigitNet:
    """The net of train_digits.py, from the cache if it is there."""
    wt.manual_seed(seed)
    model, path = DigitNet(), cache / f"digits_{seed}_{epochs}.pt"
    if path.is_file():
        model.load_state_dict(wt.load(path))
    else:
        train(model, data, epochs, 8e-3)
        cache.mkdir(parents=True, exist_ok=True)
        wt.save(model.state_dict(), path)
    return model


def milliseconds(*models: nn.Module, images: wt.Tensor) -> list[float]:
    """Processor time of one thread for a pass, the least of 15 rounds in which the models take turns."""
    threads = wt.get_num_threads()
    wt.set_num_threads(1)
    best = [float("inf")] * len(models)
    with wt.inference_mode():
        for _ in range(15):
            for i, model in enumerate(models):
                start = time.thread_time()
                model.eval()(images)
                best[i] = min(best[i], time.thread_time() - start)
    wt.set_num_threads(threads)
    return [1e3 * seconds for seconds in best]


def show(name: str, small: nn.Module, model: nn.Module, test: TensorDataset) -> None:
    """One line for the model and one for the smaller one."""
    images = test.tensors[0]
    times = milliseconds(model, small, images=images)
    for label, each, ms in zip(("float32", name), (model, small), times):
        right = accuracy(each, test)
        size = ao.model_bytes(each)
        print(f"{label}: accuracy {right:.4f}, {size} bytes, {ms:.2f} ms for {len(images)} images")
    print(f"{times[0] / times[1]:.2f} times as fast", flush=True)


def prune(model: DigitNet, data: TensorDataset, test: TensorDataset, epochs: int) -> nn.Module:
    """Half of the channels go, the rest is trained again."""
    example = test.tensors[0][:2]
    print(ao.prune_channels(model, example, 0.5))
    small = ao.shrink(model, example)
    train(small, data, epochs, 4e-3)
    return small


def masks(model: DigitNet, data: TensorDataset, test: TensorDataset, epochs: int) -> nn.Module:
    """Nine weights of ten become zero by Zhu & Gupta's schedule. Masks make nothing smaller or faster."""
    pairs = [(m, "weight") for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    steps = epochs * -(-len(data) // 64)
    pruner = ao.GradualPruner(pairs, ao.PolynomialSchedule(0.9, end=steps // 2))
    train(model, data, epochs, 4e-3, after_step=lambda: pruner.step() and None)
    print(f"{ao.sparsity(model):.3f} of the weights are zero")
    for module, name in pairs:
        nn.utils.prune.remove(module, name)
    return model


def binarise(model: DigitNet, data: TensorDataset, test: TensorDataset, epochs: int) -> nn.Module:
    """Another net, of one bit a weight."""
    small = BinaryDigitNet()
    train(small, data, epochs, 1e-2)
    return ao.pack_binary_(small)


def distill(model: DigitNet, data: TensorDataset, test: TensorDataset, epochs: int) -> nn.Module:
    """A student of an eighth of the channels, alone and with a teacher."""
    students = []
    for _ in range(2):
        wt.manual_seed(1)
        students.append(DigitNet(4))
    alone, student = students
    wt.manual_seed(2)
    train(alone, data, epochs, 8e-3)
    print(f"the student alone: accuracy {accuracy(alone, test):.4f}")
    wt.manual_seed(2)
    loader = DataLoader(data, batch_size=64, shuffle=True)
    optimizer = optim.AdamW(student.parameters(), lr=8e-3, weight_decay=0.05, fused=True)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=epochs * len(loader))
    for _ in range(epochs):
        moved = ((shifted(images), labels) for images, labels in loader)
        ao.distill(student, model, moved, optimizer, scheduler=schedule, temperature=4.0, alpha=0.9)
    return student


METHODS = {"prune": (prune, 15), "masks": (masks, 15), "binarise": (binarise, 20), "distill": (distill, 20)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the digits net smaller.")
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--epochs", type=int, help="of the smaller net (default: each method's own)")
    parser.add_argument("--first-epochs", type=int, default=20, help="of the net itself (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    parser.add_argument("--cache", type=Path, default=Path("out/compress_digits"), help="of the trained net")
    parser.add_argument("--save", type=Path, help="writes the smaller net as a program")
    options = parser.parse_args(arguments)
    if options.first_epochs < 1 or (options.epochs is not None and options.epochs < 1):
        parser.error("--epochs and --first-epochs must be at least 1")
    try:
        data, test = load_digits(options.seed)
    except ImportError:
        print("compress_digits.py: the digits need scikit-learn: pip install scikit-learn", file=sys.stderr)
        return 2
    method, epochs = METHODS[options.method]
    model = trained(data, options.cache, options.seed, options.first_epochs)
    reference = trained(data, options.cache, options.seed, options.first_epochs)
    small = method(model, data, test, options.epochs or epochs)
    show(options.method, small, reference, test)
    if options.save is not None:
        batch = Dim("batch", max=4096)
        with wt.no_grad():
            program = export(small.eval(), (test.tensors[0][:2],), dynamic_shapes=({0: batch},))
        save(program, options.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
