"""Draws docs/figures/parameter_server.svg: loss against time, and steps in a second, of each way to train.

    python docs/figures/parameter_server.py [last.json random.json none.json]

Without results it runs examples/parameter_server.py on four processes, for each kind of slow ranks: it takes
six minutes. The picture is written as text, so it needs no plotting library.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COLORS = (
    "#000",
    "#0072B2",
    "#56B4E9",
    "#009E73",
    "#D55E00",
    "#E69F00",
    "#F0E442",
    "#CC79A7",
    "#8B5FBF",
    "#999",
)
TITLES = {
    "last": "one rank always takes four times as long",
    "random": "any rank does, one step in four",
    "none": "all ranks are alike",
}
WIDTH, ROW, LEFT, PANEL, HEIGHT = 920, 330, 60, 420, 260


def measure(slow: str) -> list[dict[str, Any]]:
    """Runs the example under the launcher."""
    example = Path(__file__).parents[2] / "examples" / "parameter_server.py"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        launcher = [sys.executable, "-m", "warptape.distributed.run", "--nproc-per-node=4"]
        options = [f"--slow={slow}", "--work-ms=20", "--slow-ms=80", "--seconds=12"]
        subprocess.run([*launcher, str(example), *options, "--out", str(out)], check=True)
        return json.loads(out.read_text())


def row(title: str, results: list[dict[str, Any]], top: float) -> list[str]:
    """One kind of slow ranks: curves on the left, bars on the right."""
    seconds = max(t for each in results for t, _ in each["curve"])
    body = [f'<text class="t" x="8" y="{top - 14}">loss by seconds: {title}</text>']
    for power in (0, -1, -2):
        y = top - HEIGHT * power / 2
        body.append(f'<path class="g" d="M{LEFT},{y:.1f}h{PANEL - LEFT}"/>')
        body.append(f'<text x="8" y="{y + 4:.1f}">{10.0**power:g}</text>')
    for second in range(0, int(seconds) + 1, 2):
        x = LEFT + (PANEL - LEFT) * second / seconds
        body.append(f'<text x="{x:.1f}" y="{top + HEIGHT + 16}">{second}</text>')
    fastest = max(each["steps_per_second"] for each in results)
    body.append(f'<text class="t" x="{PANEL + 20}" y="{top - 14}">steps of all workers in a second</text>')
    for i, (each, color) in enumerate(zip(results, COLORS, strict=True)):
        powers = [(t, max(-2.0, min(0.0, math.log10(loss)))) for t, loss in each["curve"]]
        points = " ".join(
            f"{LEFT + (PANEL - LEFT) * t / seconds:.0f},{top - HEIGHT * power / 2:.0f}" for t, power in powers
        )
        body.append(f'<polyline points="{points}" stroke="{color}"/>')
        y, rate = top + 26 * i, each["steps_per_second"]
        body.append(f'<text x="{PANEL + 20}" y="{y + 14}">{each["name"]}</text>')
        wide = 250 * rate / fastest
        body.append(f'<rect x="{PANEL + 165}" y="{y}" width="{wide:.1f}" height="18" fill="{color}"/>')
        body.append(f'<text x="{PANEL + 170 + wide:.1f}" y="{y + 14}">{rate:.0f}</text>')
    return body


def draw(results: dict[str, list[dict[str, Any]]]) -> str:
    """The picture as SVG."""
    body = [
        line
        for i, (slow, title) in enumerate(TITLES.items())
        for line in row(title, results[slow], 30 + ROW * i)
    ]
    style = "text{font:12px sans-serif;fill:#222}.t{font-weight:bold}.g{stroke:#ddd}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {ROW * len(TITLES)}">'
    style += "polyline{fill:none;stroke-width:1.5}"
    ground = f'<rect width="{WIDTH}" height="{ROW * len(TITLES)}" fill="#fff"/>'
    return "\n".join([head, f"<style>{style}</style>", ground, *body, "</svg>"]) + "\n"


if __name__ == "__main__":
    given = dict(zip(TITLES, sys.argv[1:]))
    found = {slow: json.loads(Path(given[slow]).read_text()) if given else measure(slow) for slow in TITLES}
    Path(__file__).with_suffix(".svg").write_text(draw(found))
