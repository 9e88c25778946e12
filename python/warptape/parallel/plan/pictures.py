"""Pictures of a plan: what layouts need, what their steps take, and how they scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .hardware import PlanError
from .planner import Plan

# Colours of a palette that readers with colour blindness can tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")


def draw(plan: Plan, path: str | Path, what: str = "all", points: Any = None) -> None:
    """Pictures of a plan, as .svg or .png: "time" and "memory" by part, for the ten best layouts; "scaling",
    throughput and efficiency by number of devices, an extrapolation; or "all".

    Raises: PlanError where matplotlib is missing, and for another name or ending.
    """
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise PlanError(f"picture: expected a path that ends in .svg or .png, got {path}")
    kinds = ("time", "memory", "scaling") if what == "all" else (what,)
    if not set(kinds) <= {"time", "memory", "scaling"}:
        raise PlanError(f"picture: expected time, memory, scaling or all, got {what!r}")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise PlanError("pictures need matplotlib: pip install warptape[plot]") from None
    with matplotlib.rc_context({"svg.hashsalt": "warptape", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 3.4 * len(kinds)), layout="constrained")
        for axes, kind in zip(np.ravel(figure.subplots(len(kinds), 1)), kinds, strict=True):
            if kind == "scaling":
                _draw_scaling(axes, plan, plan.scaling() if points is None else points)
            else:
                _draw_parts(axes, plan, kind)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata)


def _draw_parts(axes: Any, plan: Plan, kind: str) -> None:
    estimates = [plan.estimate(each) for each in plan.top(8)]
    names = [str(e.layout) for e in estimates]
    left = np.zeros(len(estimates))
    parts = estimates[0].time_parts if kind == "time" else estimates[0].memory_parts
    for colour, part in zip(COLOURS, parts, strict=False):
        all_ = [e.time_parts if kind == "time" else e.memory_parts for e in estimates]
        values = np.array([each[part] for each in all_]) / (1.0 if kind == "time" else 1e9)
        if values.max() > 0:
            axes.barh(names, values, left=left, color=colour, label=part)
        left += values
    axes.invert_yaxis()
    axes.tick_params(labelsize=7)
    axes.set_xlabel("seconds of a step" if kind == "time" else "GB of the rank that needs most")
    axes.legend(fontsize=7, ncol=4, loc="lower center", bbox_to_anchor=(0.4, 1.0), frameon=False)


def _draw_scaling(axes: Any, plan: Plan, points: Any) -> None:
    there = [(n, e) for n, e in points if e is not None]
    counts = [n for n, _ in there]
    axes.loglog(counts, [e.tokens_per_second for _, e in there], "o-", color=COLOURS[0], label="tokens/s")
    axes.set_xlabel("devices (extrapolation)")
    axes.set_ylabel("tokens/s")
    axes.set_xlim(1, max(counts) * 1.2)
    other = axes.twinx()
    other.plot(counts, [100 * e.mfu for _, e in there], "s--", color=COLOURS[5], label="MFU")
    other.set_ylabel("MFU, % of peak")
    other.set_ylim(0, 100)
    axes.set_title(
        f"{plan.job.model.name} on {plan.job.cluster.gpu.name}, the best layout at each number", fontsize=9
    )
    lines = axes.get_lines() + other.get_lines()
    axes.legend(lines, [line.get_label() for line in lines], fontsize=8, loc="lower right")
