"""Draws docs/figures/collectives.svg: who holds what after each step of the textbook all-reduces.

    python docs/figures/collectives.py

The data come from the algorithms themselves, run in a simulated world; the picture is written as text, so it
needs no plotting library and is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warptape import distributed as dist
from warptape import zeros
from warptape.distributed.algorithms.textbook import ALGORITHMS, holdings

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # of a rank's part
CELL, GAP, LEFT, TOP, WIDTH = 22, 28, 52, 30, 920


@dataclass(frozen=True)
class Panel:
    """One algorithm: held[step][rank][chunk] has the bits of the ranks whose parts are in the sum."""

    name: str
    ranks: int
    chunks: int
    held: list[list[list[int]]]
    sent: int  # chunks that the busiest rank sends


def panels() -> list[Panel]:
    """Runs what is drawn."""
    out = []
    for name, n in [("naive", 4), ("ring", 4), ("recursive doubling", 4), ("recursive doubling", 6)]:
        traces = dist.simulate(n, lambda name=name, n=n: ALGORITHMS[name](zeros(n)))
        busiest = max(trace.bytes_sent for trace in traces) // zeros(1).element_size()
        out.append(Panel(name, n, n, holdings(traces, n), busiest))
    return out


def _boxes(kind: str, places: list[tuple[float, float]], width: float) -> str:
    """Boxes of one look as one path."""
    side = CELL - 2
    data = "".join(f"M{x:.4g},{y:.4g}h{width:.4g}v{side}h-{width:.4g}z" for x, y in places)
    return f'<path {kind} d="{data}"/>' if places else ""


def _grid(panel: Panel, step: int, left: int, top: int) -> list[str]:
    """A row for each rank, a cell for each chunk, in it a stripe for each rank whose part is in the sum."""
    cells: list[tuple[float, float]] = []
    new: list[tuple[float, float]] = []
    parts: list[list[tuple[float, float]]] = [[] for _ in range(panel.ranks)]
    stripe = (CELL - 2) / panel.ranks
    for rank, row in enumerate(panel.held[step]):
        for chunk, bits in enumerate(row):
            at = (left + chunk * CELL, top + rank * CELL)
            changed = step > 0 and panel.held[step - 1][rank][chunk] != bits
            cells.append(at)
            new += [at] * changed
            for part in range(panel.ranks):
                if bits >> part & 1:
                    parts[part].append((at[0] + part * stripe, at[1]))
    out = [_boxes('class="cell"', cells, CELL - 2)]
    out += [_boxes(f'class="part" fill="{COLORS[part]}"', parts[part], stripe) for part in range(panel.ranks)]
    out.append(_boxes('class="new"', new, CELL - 2))
    caption = "start" if step == 0 else f"step {step}"
    out.append(f'<text x="{left}" y="{top + panel.ranks * CELL + 12}">{caption}</text>')
    return [each for each in out if each]


def draw(drawn: list[Panel]) -> str:
    """The picture as SVG."""
    body: list[str] = []
    top = 8
    for panel in drawn:
        steps = len(panel.held) - 1
        sent = f"{steps} steps; the busiest rank sends {panel.sent / panel.chunks:g} times the data"
        body.append(
            f'<text class="title" x="8" y="{top + 14}">{panel.name}, {panel.ranks} ranks: {sent}</text>'
        )
        top += TOP
        for rank in range(panel.ranks):
            body.append(f'<text x="8" y="{top + rank * CELL + 14}">rank {rank}</text>')
        for step in range(steps + 1):
            body += _grid(panel, step, LEFT + step * (panel.chunks * CELL + GAP), top)
        top += panel.ranks * CELL + 32
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}"',
        f' viewBox="0 0 {WIDTH} {top}">',
        "<style>text{font:11px sans-serif;fill:#333}.title{font-weight:bold;font-size:13px}",
        ".cell{fill:#eee}.new{fill:none;stroke:#000;stroke-width:2}</style>",
        f'<rect width="{WIDTH}" height="{top}" fill="#fff"/>',
    ]
    return "\n".join([*head, *body, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(draw(panels()))
