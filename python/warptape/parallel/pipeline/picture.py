"""Timelines as a picture: text in SVG, so it needs no plotting library."""

from __future__ import annotations

from collections.abc import Sequence

from .actions import B, F, I, Kind, W
from .simulator import Span, Timeline

COLORS = {F: "#56B4E9", B: "#009E73", I: "#8CCFA8", W: "#E69F00"}
NAMES = {F: "forward", B: "backward", I: "its half for inputs", W: "its half for weights"}
WIDTH, LEFT, ROW, TITLE, GAP, LEGEND = 920, 52, 20, 22, 16, 26


def _box(span: Span, scale: float, top: float, ranks: int) -> list[str]:
    """A computation, with its micro-batch in it where there is room; later chunks are paler."""
    action, begin, end = span
    x, width = LEFT + begin * scale, max((end - begin) * scale, 0.5)
    dim = 0.75 ** (action.stage // ranks)
    out = [
        f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 2}" fill="{COLORS[action.kind]}" '
        f'fill-opacity="{dim:.3g}" stroke="#fff" stroke-width=".5"/>'
    ]
    if width >= 9:
        out.append(f'<text x="{x + width / 2:.1f}" y="{top + 13}" class="n">{action.micro_batch}</text>')
    return out


def _panel(title: str, timeline: Timeline, scale: float, top: float) -> list[str]:
    idle = timeline.bubble / timeline.length
    out = [f'<text x="{LEFT}" y="{top + 14}" class="t">{title}: waits {idle:.0%} of the time</text>']
    for rank, spans in enumerate(timeline.spans):
        y = top + TITLE + rank * ROW
        out.append(f'<text x="{LEFT - 6}" y="{y + 13}" class="r">rank {rank}</text>')
        out.append(
            f'<rect x="{LEFT}" y="{y}" width="{timeline.length * scale:.1f}" height="{ROW - 2}" fill="#eee"/>'
        )
        for span in spans:
            out += _box(span, scale, y, len(timeline.spans))
    return out


def _legend(kinds: Sequence[Kind], top: float) -> list[str]:
    out = []
    for i, kind in enumerate(kinds):
        x = LEFT + 170 * i
        out.append(f'<rect x="{x}" y="{top}" width="14" height="14" fill="{COLORS[kind]}"/>')
        out.append(f'<text x="{x + 20}" y="{top + 12}" class="t">{NAMES[kind]}</text>')
    return out


def draw_timelines(timelines: dict[str, Timeline], *, same_scale: bool = False) -> str:
    """An SVG: for each timeline a panel with a row for each rank, a box with its micro-batch number for each
    computation, paler where the stage is a rank's second or later one; grey where the rank waits.

    Args:
        timelines: title -> Timeline, as of simulate_schedule() or PipelineSchedule.timeline().
        same_scale: one length of time has one width in all panels; if not, each fills the width.
    """
    longest = max(t.length for t in timelines.values())
    out, top = [], 4.0
    for title, timeline in timelines.items():
        scale = (WIDTH - LEFT - 8) / (longest if same_scale else timeline.length)
        out += _panel(title, timeline, scale, top)
        top += TITLE + ROW * len(timeline.spans) + GAP
    seen = {a.kind for t in timelines.values() for spans in t.spans for a, _, _ in spans}
    out += _legend([k for k in COLORS if k in seen], top)
    style = "text{font:12px sans-serif;fill:#222}.n{font-size:9px;text-anchor:middle}.r{text-anchor:end}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + LEGEND:.0f}">'
    background = f'<rect width="{WIDTH}" height="{top + LEGEND:.0f}" fill="#fff"/>'
    return "\n".join([head, f"<style>{style}</style>", background, *out, "</svg>", ""])
