"""A Vision Transformer (Dosovitskiy et al., "An Image is Worth 16x16 Words", arXiv:2010.11929) on digits.

    pip install 'warptape[examples]'
    python examples/vision_transformer.py
    warptape-run --nproc-per-node 2 examples/vision_transformer.py      shares every batch among two processes

Shapes: B images of a batch, P = 2 pixels the side of a patch, N = 16 patches of an image, C width.
"""

from __future__ import annotations

import argparse
import sys

import warptape as wt
import warptape.nn.functional as F
from _common import Parser, batches, run, share, steps_of_epoch
from train_digits import accuracy, load_digits, shifted
from warptape import nn, optim

PATCH, PATCHES = 2, 16


class VisionTransformer(nn.Module):
    """Patches and a class token through an encoder: [B, 1, 8, 8] -> logits [B, 10]."""

    def __init__(self, width: int = 64, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, PATCH, stride=PATCH)  # a linear map of each patch
        self.class_token = nn.Parameter(wt.zeros(1, 1, width))
        # Which patches are neighbours has to be learned, which takes longer from 0.02, the paper's code's.
        self.positions = nn.Parameter(wt.randn(1, PATCHES + 1, width) * 0.5)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: wt.Tensor) -> wt.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)  # [B, N, C]
        tokens = wt.cat([self.class_token.expand(len(images), -1, -1), tokens], dim=1)  # [B, N + 1, C]
        return self.head(self.encoder(tokens + self.positions)[:, 0])


def program(options: argparse.Namespace) -> nn.Module:
    train_set, test_set = load_digits(options.seed)
    model = VisionTransformer()
    shared = share(model, options.seed)
    steps_an_epoch = steps_of_epoch(train_set, options.batch)
    steps = options.epochs * steps_an_epoch
    optimizer = optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05, fused=True)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {steps} steps")
    for step, (images, labels) in enumerate(
        batches(train_set, options.batch, options.seed, options.epochs), 1
    ):
        loss = F.cross_entropy(shared(shifted(images)), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % (5 * steps_an_epoch) == 0:
            epoch = step // steps_an_epoch
            print(
                f"epoch {epoch} loss {loss.item():.4f} test accuracy {accuracy(model, test_set):.4f}",
                flush=True,
            )
    print(f"test accuracy {accuracy(model, test_set):.4f}")
    return model


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.number("--epochs", 40, "passes over the training digits")
    parser.number("--batch", 64, "images in a step", divided=True)
    sys.exit(run(program, parser))
