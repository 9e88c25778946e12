"""What is shown of a plan: a table, every term of a layout, pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .hardware import PlanError
from .search import Job
from .sheet import Sheet

if TYPE_CHECKING:
    from .planner import Estimate, Plan

# Colours of a palette that readers with colour blindness can tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
WORDS = {
    "compute": "computation",
    "tensor": "messages of tensor parallelism",
    "context": "messages of context parallelism",
    "experts": "messages to experts and back",
    "sends": "messages between stages",
    "bubble": "the pipeline's bubble",
    "data": "gradients and weights between copies",
    "optimizer": "the optimizer",
}


def table_of(job: Job, estimates: Sequence[Estimate], tried: int, fitting: int) -> str:
    """A line for each estimate."""
    m, c = job.model, job.cluster
    lines = [
        f"{m.name}: {m.parameters / 1e9:.1f} B parameters, {job.sequences} sequences of {job.sequence} "
        f"tokens a step, on {c.gpus} {c.gpu.name} over {c.network.name}, {job.program.precision}",
        f"{fitting} of {tried} layouts fit; best first:",
        f"{'GB':>6} {'step s':>8} {'MFU':>6} {'HFU':>6} {'tokens/s':>10} {'days':>8} {'cost':>11}  layout",
    ]
    for e in estimates:
        lines.append(
            f"{e.memory / 1e9:6.1f} {e.step:8.2f} {e.mfu:6.1%} {e.hfu:6.1%} {e.tokens_per_second:10.0f} "
            f"{e.days:8.1f} {e.cost:11.0f}  {e.layout}"
        )
    return "\n".join(lines)


def number(value: Any) -> str:
    """A value with four digits."""
    return f"{float(np.ravel(value)[0]):.4g}"


def with_unit(value: Any, unit: str) -> str:
    """A value in a handy unit."""
    x = float(np.ravel(value)[0])
    if unit == "B":
        return f"{x / 1e9:.4g} GB" if abs(x) >= 1e8 else f"{x / 1e6:.4g} MB"
    if unit == "s":
        return f"{x:.4g} s" if abs(x) >= 1 else f"{x * 1e3:.4g} ms"
    return f"{x:.6g} {unit}".rstrip()


def _filled(formula: str, values: Mapping[str, Any]) -> str:
    """The formula with numbers in place of names."""
    put = lambda match: number(values[match[0]]) if match[0] in values else match[0]
    return re.sub(r"[A-Za-z_]\w*", put, formula)


def explained(title: str, parts: Sequence[tuple[str, Sheet, Mapping[str, Any]]]) -> str:
    """Every row: the formula, the same with numbers, the value."""
    out = [title]
    for name, sheet, values in parts:
        own = {row.name for row in sheet.rows}
        inputs = dict.fromkeys(
            n for row in sheet.rows for n in row.reads if n not in own | set(sheet.functions)
        )
        out += ["", f"[{name}] inputs: " + ", ".join(f"{n} = {number(values[n])}" for n in inputs), ""]
        for row in sheet.rows:
            filled = _filled(row.formula, values)
            out.append(
                f"{row.name} = {with_unit(values[row.name], row.unit)}"
                + (f": {row.what}" if row.what else "")
            )
            out.append(f"    = {row.formula}")
            if filled != row.formula:
                out.append(f"    = {filled}")
    return "\n".join(out)


def scaling_sentence(job: Job, points: Sequence[tuple[int, Estimate | None]]) -> str:
    """What stops the scaling, by the part of a step that grows most from the most efficient number of devices
    to the largest."""
    there = [(n, e) for n, e in points if e is not None]
    if len(there) < 2:
        return f"{job.model.name} fits at fewer than two of the numbers of devices that were tried."
    last_n, last = there[-1]
    first_n, first = max(there[:-1], key=lambda each: each[1].mfu)
    share = lambda e, part: e.time_parts[part] / e.step
    worst = max((p for p in WORDS if p != "compute"), key=lambda p: share(last, p) - share(first, p))
    lost = {p: share(last, p) - share(first, p) for p in WORDS}
    text = (
        f"From {first_n:,} to {last_n:,} devices the share of peak goes from {first.mfu:.0%} to "
        f"{last.mfu:.0%} for the same batch; what grows most is {WORDS[worst]}, from "
        f"{share(first, worst):.0%} to {share(last, worst):.0%} of a step"
    )
    if lost[worst] < 0.02:
        return text + ": products too small to fill a device cost the rest."
    if worst == "bubble":
        n, pp = last.layout.n_microbatches, last.layout.pp
        return text + f": {n} micro-batches are left for {pp} stages."
    return text + "."


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
