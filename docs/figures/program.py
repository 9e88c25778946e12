"""Draws program.svg: forward and backward of a small network as one program, after all passes."""

from pathlib import Path

import warptape as torch
import warptape.nn.functional as F
from warptape import nn

torch.manual_seed(0)
first, second = nn.Linear(8, 16), nn.Linear(16, 4)
x, target = torch.randn(32, 8), torch.randn(32, 4)


@torch.compile
def step():
    """A training step without its optimizer."""
    h = first(x)
    loss = F.mse_loss(second(h.sigmoid() * h), target)
    loss.backward()
    return loss


step()
step.explain().programs[0].draw().save(Path(__file__).with_name("program.svg"))
