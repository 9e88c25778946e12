"""Whole trainings on the device: the losses of the CPU's, the same bits again, the same bits from a graph."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import warptape as wt
import warptape.nn.functional as F
from warptape import nn, optim

pytestmark = pytest.mark.cuda
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "AdamW": lambda p: optim.AdamW(p, lr=1e-2, weight_decay=0.1, fused=True),
    "Adam amsgrad": lambda p: optim.Adam(p, lr=1e-2, amsgrad=True),
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, fused=True),
}


def example(name: str) -> ModuleType:
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


class Gpt:
    """The example's GPT, small, on random bytes."""

    def __init__(self, device: str, dropout: float = 0.0) -> None:
        module = example("train_gpt")
        wt.manual_seed(4)
        self.model = module.GPT(layers=2, heads=2, width=32, block=16).to(device)
        self.drop = nn.Dropout(dropout)
        draw = np.random.default_rng(0)
        self.tokens = wt.from_numpy(draw.integers(0, 256, (3, 16))).to(device)
        self.targets = wt.from_numpy(draw.integers(0, 256, (3, 16))).to(device)

    def loss(self) -> wt.Tensor:
        logits = self.drop(self.model(self.tokens))
        return F.cross_entropy(logits.flatten(0, 1), self.targets.flatten())


class Digits:
    """The example's convolutional net on random images."""

    def __init__(self, device: str) -> None:
        wt.manual_seed(5)
        self.model = example("train_digits").DigitNet(channels=4).to(device)
        # Before a batch norm, a bias has a gradient of rounding alone, which Adam would scale up.
        for module in self.model.features:
            if isinstance(module, nn.Conv2d):
                module.bias.requires_grad_(False)
        draw = np.random.default_rng(1)
        self.images = wt.from_numpy(draw.random((6, 1, 8, 8), dtype=np.float32)).to(device)
        self.labels = wt.from_numpy(draw.integers(0, 10, 6)).to(device)

    def loss(self) -> wt.Tensor:
        return F.cross_entropy(self.model(self.images), self.labels, label_smoothing=0.1)


def losses(net: Any, optimizer: optim.Optimizer, steps: int) -> list[wt.Tensor]:
    found = []
    for _ in range(steps):
        loss = net.loss()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.detach())
    return found


def trained(
    make: Callable[[str], Any], optimizer: str, device: str, steps: int = 4
) -> tuple[list[float], Any]:
    net = make(device)
    wt.manual_seed(6)
    found = losses(net, OPTIMIZERS[optimizer](net.model.parameters()), steps)
    return [loss.item() for loss in found], {k: v.cpu() for k, v in net.model.state_dict().items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make", [Gpt, Digits], ids=["gpt", "digits"])
def test_losses_of_the_cpu(make: Callable[[str], Any], optimizer: str) -> None:
    on_cpu, weights_cpu = trained(make, optimizer, "cpu")
    on_device, weights_device = trained(make, optimizer, "cuda")
    np.testing.assert_allclose(on_device, on_cpu, rtol=2e-4)
    assert on_cpu[-1] < on_cpu[0]
    for name, want in weights_cpu.items():
        np.testing.assert_allclose(weights_device[name], want, rtol=1e-2, atol=2e-3, err_msg=name)


def test_dropout_draws_what_the_cpu_draws() -> None:
    def loss_on(device: str) -> float:
        net = Gpt(device, dropout=0.5)
        wt.manual_seed(7)
        return net.loss().item()

    assert loss_on("cuda") == pytest.approx(loss_on("cpu"), rel=1e-5)


def test_bfloat16_autocast_trains() -> None:
    net = Gpt("cuda")
    optimizer = OPTIMIZERS["AdamW"](net.model.parameters())
    found = []
    for _ in range(8):
        with wt.autocast("cuda", dtype=wt.bfloat16):
            loss = net.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert net.model.head.weight.grad.dtype == wt.float32
    assert found[-1] < 0.9 * found[0]


@pytest.mark.parametrize("make", [Gpt, Digits], ids=["gpt", "digits"])
def test_same_bits_while_another_stream_is_busy(make: Callable[[str], Any]) -> None:
    """Equal runs give equal bits, whatever else the device does."""
    _, want = trained(make, "AdamW", "cuda", steps=2)
    busy = wt.cuda.Stream()
    noise = wt.rand(200, 300, device="cuda")
    busy.wait_stream(wt.cuda.current_stream())
    noise.record_stream(busy)
    for _ in range(3):
        with wt.cuda.stream(busy):
            for _ in range(5):
                noise = (noise @ noise.t() @ noise).sigmoid()
        _, again = trained(make, "AdamW", "cuda", steps=2)
        assert all(wt.equal(again[name], value) for name, value in want.items())
    busy.synchronize()


def test_captured_step_equals_eager() -> None:
    """Capture of forward, backward, clipping and AdamW: replays give the eager steps' bits."""
    eager = Gpt("cuda", dropout=0.2)
    wt.manual_seed(8)
    step = OPTIMIZERS["AdamW"](eager.model.parameters())
    want = [loss.item() for loss in losses(eager, step, 6)]

    net = Gpt("cuda", dropout=0.2)
    wt.manual_seed(8)
    optimizer = OPTIMIZERS["AdamW"](net.model.parameters())
    side = wt.cuda.Stream()
    side.wait_stream(wt.cuda.current_stream())
    with wt.cuda.stream(side):
        found = [loss.item() for loss in losses(net, optimizer, 2)]
    wt.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = wt.cuda.CUDAGraph()
    with wt.cuda.graph(graph):
        captured = losses(net, optimizer, 1)
    for _ in range(4):
        graph.replay()
        found.append(captured[0].item())
    assert found == want
    for mine, theirs in zip(net.model.parameters(), eager.model.parameters(), strict=True):
        assert wt.equal(mine, theirs)
