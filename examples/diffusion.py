"""Denoising diffusion (DDPM; Ho et al., arXiv:2006.11239) that draws the handwritten digit it is asked for.

    pip install 'warptape[examples]'
    python examples/diffusion.py                           writes out/diffusion.png
    warptape-run --nproc-per-node 2 examples/diffusion.py  shares every batch among two processes

It draws in all 200 steps of DDPM, and in 20 of DDIM (Song et al., arXiv:2010.02502). A classifier that
learned from the real digits judges: the share that it takes for what was asked for. The spread is how much
the drawn ones of a digit differ from each other, as a multiple of how much the real ones do.

Shapes: B images of a batch, D = 64 pixels, C width; x is an image, x_t that image after t steps of noise.
"""

from __future__ import annotations

import argparse
import math
import sys
from itertools import pairwise

import warptape as wt
from _common import Parser, batches, run, save_picture, share, steps_of_epoch
from train_digits import DigitNet, load_digits, train
from warptape import nn, optim
from warptape.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

T = 200
# Part of x's variance that is left after t steps, t = 0 to T: a cosine's square (arXiv:2102.09672, eq. 17).
KEPT = ((wt.arange(T + 1) / T + 0.008) / 1.008 * (math.pi / 2)).cos().square().clamp(1e-4, 0.9999)


class Denoiser(nn.Module):
    """x_t [B, D], t [B] and the digits [B] -> the noise that is in x_t [B, D]: a residual network."""

    def __init__(self, width: int = 192, blocks: int = 3) -> None:
        super().__init__()
        self.inputs = nn.Linear(64, width)
        self.digits = nn.Embedding(10, width)
        self.times = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
            )
            for _ in range(blocks)
        )
        self.outputs = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64))

    def forward(self, x: wt.Tensor, t: wt.Tensor, digits: wt.Tensor) -> wt.Tensor:
        lengths = wt.exp(wt.arange(32) * (-math.log(1000.0) / 32))
        angles = t.unsqueeze(1) * lengths  # [B, 32]
        condition = self.times(wt.cat([angles.sin(), angles.cos()], dim=1)) + self.digits(digits)  # [B, C]
        hidden = self.inputs(x)
        for block in self.blocks:
            hidden = hidden + block(hidden + condition)
        return self.outputs(hidden)


def loss_of(model: nn.Module, x: wt.Tensor, digits: wt.Tensor) -> wt.Tensor:
    """The mean square error of the noise at random times (eq. 14)."""
    t = wt.randint(1, T + 1, (len(x),))
    kept, noise = KEPT[t].unsqueeze(1), wt.randn_like(x)
    return (model(kept.sqrt() * x + (1 - kept).sqrt() * noise, t, digits) - noise).square().mean()


@wt.no_grad()
def sample(model: nn.Module, digits: wt.Tensor, steps: int, eta: float) -> wt.Tensor:
    """Images [B, D] out of noise (arXiv:2010.02502, eq. 12): eta 0 is DDIM, eta 1 with T steps DDPM."""
    x = wt.randn(len(digits), 64)
    times = wt.linspace(T, 0, steps + 1).round().long().tolist()
    for now, then in pairwise(times):
        kept, next_kept = KEPT[now], KEPT[then]
        noise = model(x, wt.full((len(x),), now), digits)
        clean = ((x - (1 - kept).sqrt() * noise) / kept.sqrt()).clamp(-1, 1)
        noise = (x - kept.sqrt() * clean) / (1 - kept).sqrt()  # of the clamped image
        fresh = eta * ((1 - next_kept) / (1 - kept) * (1 - kept / next_kept)).sqrt()
        x = next_kept.sqrt() * clean + (1 - next_kept - fresh.square()).sqrt() * noise
        x = x + fresh * wt.randn_like(x)
    return clean


@wt.no_grad()
def judged(images: wt.Tensor, digits: wt.Tensor, judge: nn.Module) -> tuple[float, float]:
    """Share of images [B, 1, 8, 8] taken for their digit, and standard deviation of a pixel by digit."""
    judge.eval()
    right = (judge(images).argmax(dim=1) == digits).float().mean().item()
    variances = [images[digits == digit].var(dim=0).mean() for digit in range(10)]
    return right, wt.stack(variances).mean().sqrt().item()


def program(options: argparse.Namespace) -> nn.Module:
    train_set, test_set = load_digits(options.seed)
    judge = DigitNet(16)
    train(judge, train_set, 8, 8e-3)
    model = Denoiser()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.995))
    shared = share(model, options.seed)
    steps_an_epoch = steps_of_epoch(train_set, options.batch)
    steps = options.epochs * steps_an_epoch
    optimizer = optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {steps} steps")
    for step, (images, digits) in enumerate(
        batches(train_set, options.batch, options.seed, options.epochs), 1
    ):
        loss = loss_of(shared, images.flatten(1) * 2 - 1, digits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        if step % (25 * steps_an_epoch) == 0:
            print(f"epoch {step // steps_an_epoch} loss {loss.item():.4f}", flush=True)
    digits, rows = wt.arange(10).repeat(40), []  # [400]
    real_right, real_deviation = judged(*test_set.tensors, judge)
    print(f"real digits: {real_right:.4f} taken for what they are")
    for name, count, eta in (("DDPM", T, 1.0), ("DDIM", T // 10, 0.0)):
        drawn = (sample(average, digits, count, eta).view(-1, 1, 8, 8) + 1) / 2
        right, deviation = judged(drawn, digits, judge)
        print(f"{name}, {count} steps: {right:.4f}, spread {deviation / real_deviation:.4f}", flush=True)
        rows.append(drawn[:40])
    save_picture(wt.cat(rows), options.out / "diffusion.png", columns=10)
    return model


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.number("--epochs", 150, "passes over the training digits")
    parser.number("--batch", 64, "images in a step", divided=True)
    parser.folder()
    sys.exit(run(program, parser))
