"""Draws docs/figures/cpu.svg: the table of benchmarks/results/cpu.json as bars.

    python docs/figures/cpu.py

The picture is written as text, so it needs no plotting library and is the same on every machine.
"""

from __future__ import annotations

import html
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW, LEFT, SCALE, TOP, WIDTH = 20, 360, 420, 44, 860
INK, BAR, FAINT = "#333333", "#0072B2", "#bbbbbb"


def label(x: float, y: float, words: str, more: str = "") -> str:
    """An SVG text."""
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{html.escape(words)}</text>'


def rule(x: float, y: float, to_x: float, to_y: float, color: str) -> str:
    """An SVG line."""
    return f'<line x1="{x:.1f}" y1="{y}" x2="{to_x:.1f}" y2="{to_y}" stroke="{color}"/>'


def draw(lines: list[dict]) -> str:
    """A bar for each ratio, a whisker to its upper 95 % bound; PyTorch's time is the line at 1."""
    bottom = TOP + ROW * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 12}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{bottom + 12}" fill="white"/>',
        label(LEFT, 18, "time over PyTorch 2.13's, two threads (less is faster)", 'font-weight="bold"'),
    ]
    for value in (0, 0.25, 0.5, 0.75, 1.0):
        x = LEFT + SCALE * value
        parts.append(rule(x, TOP - 6, x, bottom, INK if value == 1 else FAINT))
        parts.append(label(x, TOP - 10, f"{value:g}", 'text-anchor="middle"'))
    for i, line in enumerate(lines):
        y, width = TOP + ROW * i, SCALE * line["ratio"]
        bound = LEFT + SCALE * line["bound"]
        parts.append(label(LEFT - 8, y + 14, line["title"].replace("`", ""), 'text-anchor="end"'))
        parts.append(
            f'<rect class="bar" x="{LEFT}" y="{y + 4}" width="{width:.1f}" height="13" fill="{BAR}"/>'
        )
        parts.append(rule(LEFT + width, y + 10, bound, y + 10, INK))
        parts.append(label(bound + 6, y + 14, f"{line['ratio']:.2f}"))
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    rows = json.loads((ROOT / "benchmarks/results/cpu.json").read_text())
    (ROOT / "docs/figures/cpu.svg").write_text(draw(rows))
