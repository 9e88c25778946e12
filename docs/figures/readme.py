"""Draws tape.svg, the tape of a small network, and ranks.svg, a notebook cell with four ranks and its output.

python docs/figures/readme.py
"""

from __future__ import annotations

import contextlib
import html
import io
from pathlib import Path

import warptape as torch
from warptape import nn
from warptape.graph_drawing import draw

FOLDER = Path(__file__).parent
CELL = """\
import warptape as torch
import warptape.distributed as dist
from warptape import nn
from warptape.nn.parallel import DistributedDataParallel


def train():
    rank = dist.get_rank()
    torch.manual_seed(0)  # the same weights on every rank
    model = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x = torch.rand(64, 2, generator=torch.Generator().manual_seed(rank))
    for step in range(100):
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # averages the gradients over the ranks
        optimizer.step()
    return rank, model.module.weight.tolist()


for rank, weight in dist.simulate(4, train):
    print(f"rank {rank}: {weight}")
"""


def tape() -> None:
    """Draws the tape."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    loss = nn.functional.mse_loss(model(torch.rand(16, 2)), torch.rand(16, 1))
    draw(loss, names=dict(model.named_parameters())).save(FOLDER / "tape.svg")


def cell() -> str:
    """The cell and its output as a notebook shows them."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(CELL, "cell.py", "exec"), {"__name__": "cell"})
    code, out = CELL.rstrip().split("\n"), printed.getvalue().rstrip().split("\n")
    line, left, width = 17, 70, 760
    top, gap = 24, 26
    below = top + line * len(code) + gap
    height = below + line * len(out) + 6

    def lines(rows: list[str], start: int) -> list[str]:
        return [
            f'<text x="{left + 10}" y="{start + line * i}" xml:space="preserve">{html.escape(row)}</text>'
            for i, row in enumerate(rows)
        ]

    number = '<text x="8" y="{}" fill="{}">{}[1]:</text>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            'font-family="monospace" font-size="13" fill="#333333">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<rect x="{left}" y="6" width="{width - left - 8}" height="{line * len(code) + 8}" '
            'fill="#f5f5f5" stroke="#dddddd"/>',
            number.format(top, "#303F9F", "In "),
            *lines(code, top),
            number.format(below, "#D84315", "Out"),
            *lines(out, below),
            "</svg>",
        ]
    )


if __name__ == "__main__":
    tape()
    (FOLDER / "ranks.svg").write_text(cell() + "\n")
