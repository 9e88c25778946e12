"""Rows of benchmarks/cpu.py: ResNet-50 and a small convolutional net, row-major and channels last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def resnet(lib: Any, depth: int) -> Any:
    """ResNet-18 or 50 of "Deep Residual Learning for Image Recognition", table 1, strides in its 3 x 3
    kernels."""
    nn = lib.nn
    growth = 4 if depth == 50 else 1

    def normed(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[Any]:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        return [conv, nn.BatchNorm2d(outputs)]

    class Block(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            kernels = [(inputs, width, 3, stride), (width, width, 3)]
            if depth == 50:
                kernels = [(inputs, width, 1), (width, width, 3, stride), (width, 4 * width, 1)]
            path = [layer for sizes in kernels for layer in (*normed(*sizes), nn.ReLU(inplace=True))]
            self.path = nn.Sequential(*path[:-1])
            same = stride == 1 and inputs == growth * width
            self.short = nn.Identity() if same else nn.Sequential(*normed(inputs, growth * width, 1, stride))

        def forward(self, x: Any) -> Any:
            return (self.path(x) + self.short(x)).relu_()

    layers = [*normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3) if depth == 50 else (2, 2, 2, 2)):
        for i in range(blocks):
            layers.append(Block(inputs, 64 << stage, 2 if stage and i == 0 else 1))
            inputs = 64 * growth << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def small_net(lib: Any) -> Any:
    nn = lib.nn
    layers, inputs = [], 3
    for outputs in (32, 64, 128):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers.append(nn.MaxPool2d(2) if outputs < 128 else nn.AdaptiveAvgPool2d(1))
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, 10))


def images(net: Callable[[Any], Any], batch: int, size: int, train: bool, last: bool) -> Callable[[Any], Any]:
    """A training step with SGD, or inference, on images of 3 x size x size."""

    def build(lib: Any) -> Callable[[], Any]:
        lib.manual_seed(0)
        values = np.random.default_rng(0).standard_normal((batch, 3, size, size), dtype=np.float32)
        model, x, target = net(lib), lib.from_numpy(values), lib.zeros(batch, dtype=lib.int64)
        if last:
            model, x = model.to(memory_format=lib.channels_last), x.to(memory_format=lib.channels_last)
        optimizer = lib.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def step() -> None:
            optimizer.zero_grad()
            lib.nn.functional.cross_entropy(model(x), target).backward()
            optimizer.step()

        def infer() -> Any:  # what nobody gets, a compiled function does not compute
            with lib.inference_mode():
                return model(x)

        model.train(train)
        return step if train else infer

    return build
