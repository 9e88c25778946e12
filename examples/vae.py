"""A variational autoencoder (Kingma and Welling, arXiv:1312.6114) of handwritten digits.

    pip install 'warptape[examples]'
    python examples/vae.py                                 writes out/vae.png
    warptape-run --nproc-per-node 2 examples/vae.py        shares every batch among two processes

The bound on the log-likelihood (ELBO) is in nats per image. A pixel is one of 17 levels, taken as a count
of 16 draws, so that its likelihood is a binomial's; the baseline knows each pixel's mean alone.

Shapes: B images of a batch, D = 64 pixels, Z latent numbers.
"""

from __future__ import annotations

import argparse
import sys

import warptape as wt
import warptape.nn.functional as F
from _common import Parser, batches, run, save_picture, share
from train_digits import load_digits
from warptape import nn, optim
from warptape.utils.data import TensorDataset

LEVELS = 16


class VAE(nn.Module):
    """Images [B, D] from 0 to 1 -> logits of pixels [B, D], mean and log-variance of latents [B, Z]."""

    def __init__(self, latents: int = 8, width: int = 256) -> None:
        super().__init__()
        self.latents = latents
        self.encoder = nn.Sequential(
            nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * latents)
        )
        self.decoder = nn.Sequential(
            nn.Linear(latents, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 64)
        )

    def forward(self, images: wt.Tensor) -> tuple[wt.Tensor, wt.Tensor, wt.Tensor]:
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        z = mean + wt.randn_like(mean) * (0.5 * log_variance).exp()  # the reparametrisation trick
        return self.decoder(z), mean, log_variance


def log_likelihood(logits: wt.Tensor, images: wt.Tensor) -> wt.Tensor:
    """log p(image | logits) of each image in nats [B]: binomials of 16 draws, independent by pixel."""
    counts = images * LEVELS
    ways = wt.lgamma(wt.tensor(LEVELS + 1.0)) - wt.lgamma(counts + 1) - wt.lgamma(LEVELS - counts + 1)
    each = ways + counts * F.logsigmoid(logits) + (LEVELS - counts) * F.logsigmoid(-logits)
    return each.sum(dim=1)


def elbo(model: nn.Module, images: wt.Tensor) -> wt.Tensor:
    """The bound's mean over the batch: likelihood less divergence of the latents from the prior."""
    logits, mean, log_variance = model(images)
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1)  # [B]
    return (log_likelihood(logits, images) - divergence).mean()


def program(options: argparse.Namespace) -> nn.Module:
    train_set, test_set = (data.tensors[0].flatten(1) for data in load_digits(options.seed))  # [N, D]
    model = VAE()
    shared = share(model, options.seed)
    optimizer = optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    of_epoch = 0
    for step, (images,) in enumerate(
        batches(TensorDataset(train_set), options.batch, options.seed, options.epochs), 1
    ):
        loss = -elbo(shared, images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        of_epoch += options.batch
        if of_epoch + options.batch > 10 * len(train_set):
            of_epoch = 0
            print(f"step {step} elbo {-loss.item():.2f}", flush=True)
    with wt.no_grad():
        bound = sum(elbo(model, test_set).item() for _ in range(10)) / 10
        means = train_set.mean(dim=0).clamp(1e-3, 1 - 1e-3)
        baseline = log_likelihood(means.logit().expand_as(test_set), test_set).mean().item()
        print(f"test elbo {bound:.2f}, baseline {baseline:.2f}")
        rebuilt = model(test_set[:16])[0].sigmoid()
        drawn = model.decoder(wt.randn(24, model.latents)).sigmoid()
    rows = [test_set[:8], rebuilt[:8], test_set[8:16], rebuilt[8:], drawn]
    save_picture(wt.cat(rows).view(-1, 1, 8, 8), options.out / "vae.png")
    return model


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.number("--epochs", 60, "passes over the training digits")
    parser.number("--batch", 64, "images in a step", divided=True)
    parser.folder()
    sys.exit(run(program, parser))
