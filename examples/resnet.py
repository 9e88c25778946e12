"""A residual network (He et al., "Deep Residual Learning", arXiv:1512.03385) that reads handwritten digits.

    pip install 'warptape[examples]'
    python examples/resnet.py
    warptape-run --nproc-per-node 2 examples/resnet.py      shares every batch among two processes

Shapes: B images of a batch, C channels; an image is 8 x 8 pixels, its label one of ten digits.
"""

from __future__ import annotations

import argparse
import sys

import warptape as wt
import warptape.nn.functional as F
from _common import Parser, batches, run, share, steps_of_epoch
from train_digits import accuracy, load_digits, shifted
from warptape import nn, optim


class BasicBlock(nn.Module):
    """relu(x + convolutions(x)); a stride or more channels put a 1 x 1 convolution in place of x."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        # A block starts as the identity: its last scale is zero (Goyal et al., 2017, section 5.1).
        nn.init.zeros_(self.convolutions[4].weight)
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return F.relu(self.shortcut(x) + self.convolutions(x))


class ResNet(nn.Module):
    """A stem, three stages of two blocks, the mean over the image: [B, 1, 8, 8] -> logits [B, 10]."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.stages = nn.Sequential(
            BasicBlock(width, width, 1),  # [B, C, 8, 8]
            BasicBlock(width, width, 1),
            BasicBlock(width, 2 * width, 2),  # [B, 2 C, 4, 4]
            BasicBlock(2 * width, 2 * width, 1),
            BasicBlock(2 * width, 4 * width, 2),  # [B, 4 C, 2, 2]
            BasicBlock(4 * width, 4 * width, 1),
        )
        self.head = nn.Linear(4 * width, 10)

    def forward(self, images: wt.Tensor) -> wt.Tensor:
        return self.head(self.stages(self.stem(images)).mean(dim=(2, 3)))


def program(options: argparse.Namespace) -> nn.Module:
    train_set, test_set = load_digits(options.seed)
    model = ResNet()
    shared = share(model, options.seed)
    steps_an_epoch = steps_of_epoch(train_set, options.batch)
    steps = options.epochs * steps_an_epoch
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {steps} steps")
    for step, (images, labels) in enumerate(
        batches(train_set, options.batch, options.seed, options.epochs), 1
    ):
        loss = F.cross_entropy(shared(shifted(images)), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % steps_an_epoch == 0:
            epoch = step // steps_an_epoch
            print(
                f"epoch {epoch} loss {loss.item():.4f} test accuracy {accuracy(model, test_set):.4f}",
                flush=True,
            )
    print(f"test accuracy {accuracy(model, test_set):.4f}")
    return model


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.number("--epochs", 15, "passes over the training digits")
    parser.number("--batch", 64, "images in a step", divided=True)
    sys.exit(run(program, parser))
