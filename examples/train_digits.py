"""Train a small convolutional net on scikit-learn's handwritten digits: over 98.5 % right within a minute.

    pip install 'warptape[examples]'
    python examples/train_digits.py

Shapes: B images of a batch; an image is 8 x 8 pixels of one channel, its label one of ten digits.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import warptape as wt
import warptape.nn.functional as F
from warptape import nn, optim
from warptape.utils.data import DataLoader, TensorDataset


class DigitNet(nn.Module):
    """Three convolutions, one halving of the image, one linear layer: [B, 1, 8, 8] -> logits [B, 10]."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),  # [B, C, 8, 8]
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(2),  # [B, C, 4, 4]
            nn.Conv2d(channels, 2 * channels, 3, padding=1),  # [B, 2 C, 4, 4]
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(2 * channels * 16, 10))

    def forward(self, images: wt.Tensor) -> wt.Tensor:
        return self.head(self.features(images))


def load_digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """The 1,797 digits, a fifth of them held out; the split depends on the seed alone."""
    from sklearn.datasets import load_digits as sklearn_digits

    digits = sklearn_digits()
    images = wt.from_numpy((digits.images / 16).astype(np.float32)).unsqueeze(1)  # [1797, 1, 8, 8], 0 to 1
    labels = wt.from_numpy(digits.target.astype(np.int64))
    order = wt.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def shifted(images: wt.Tensor) -> wt.Tensor:
    """The batch moved by up to one pixel each way, so that exact places do not matter: [B, 1, 8, 8]."""
    down, right = wt.randint(0, 3, (2,)).tolist()
    return F.pad(images, (1, 1, 1, 1))[:, :, down : down + 8, right : right + 8]


@wt.no_grad()
def accuracy(model: DigitNet, data: TensorDataset) -> float:
    """Share of the data set that the model names right."""
    model.eval()
    device = next(model.parameters()).device
    images, labels = (t.to(device) for t in data.tensors)
    right = (model(images).argmax(dim=1) == labels).float().mean().item()
    model.train()
    return right


def train(
    model: nn.Module,
    data: TensorDataset,
    epochs: int,
    lr: float,
    *,
    batch: int = 64,
    workers: int = 0,
    after_step: Callable[[], None] = lambda: None,
    after_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
) -> None:
    """Trains where the model lies, by learning rates up to `lr`; after_epoch gets the epoch, from 1, and
    its mean loss."""
    loader = DataLoader(
        data, batch_size=batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    optimizer = optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05, fused=True)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(loader))
    device = next(model.parameters()).device
    model.train()
    for epoch in range(1, epochs + 1):
        total = 0.0
        for images, labels in loader:
            logits = model(shifted(images).to(device))
            loss = F.cross_entropy(logits, labels.to(device), label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            after_step()
            total += loss.item() * len(labels)
        after_epoch(epoch, total / len(data))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a convolutional net on scikit-learn's digits.")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training digits (default 20)")
    parser.add_argument("--batch", type=int, default=64, help="images in a step (default 64)")
    parser.add_argument("--lr", type=float, default=8e-3, help="highest learning rate (default 0.008)")
    parser.add_argument("--seed", type=int, default=0, help="seed of split, weights and batches (default 0)")
    parser.add_argument("--workers", type=int, default=0, help="processes that load the batches (default 0)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default cpu)")
    options = parser.parse_args(arguments)
    if options.epochs < 1 or options.batch < 1 or options.workers < 0:
        parser.error("--epochs and --batch must be at least 1, --workers at least 0")
    try:
        train_set, test_set = load_digits(options.seed)
    except ImportError:
        print("train_digits.py: the digits come with scikit-learn: pip install scikit-learn", file=sys.stderr)
        return 2

    try:
        device = wt.zeros(1, device=options.device).device
    except (RuntimeError, TypeError, ValueError) as error:
        print(f"train_digits.py: --device {options.device}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2

    start = time.perf_counter()
    wt.manual_seed(options.seed)
    model = DigitNet().to(device)
    rights = []

    def tell(epoch: int, loss: float) -> None:
        rights.append(accuracy(model, test_set))
        print(f"epoch {epoch} loss {loss:.4f} test accuracy {rights[-1]:.4f}", flush=True)

    sizes = {"batch": options.batch, "workers": options.workers}
    train(model, train_set, options.epochs, options.lr, **sizes, after_epoch=tell)
    print(f"test accuracy {rights[-1]:.4f} after {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
