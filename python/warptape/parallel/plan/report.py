"""What is shown of a plan: a table, every term of a layout, pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .cost_model import CostModel
from .estimates import Estimate
from .search import Job

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
    """A line for each estimate.

    Args:
        job: what is trained.
        estimates: one for each line.
        tried, fitting: numbers of layouts.
    """
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
    """A value with four digits.

    Args:
        value: a number or an array of one.
    """
    return f"{float(np.ravel(value)[0]):.4g}"


def with_unit(value: Any, unit: str) -> str:
    """A value in a handy unit.

    Args:
        value: a number or an array of one.
        unit: "B", "s", "FLOP" or "".
    """
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


def explained(title: str, parts: Sequence[tuple[str, CostModel, Mapping[str, Any]]]) -> str:
    """Every term: the formula, the same with numbers, the value.

    Args:
        title: the first line.
        parts: name, terms and values of each.
    """
    out = [title]
    for name, cost_model, values in parts:
        own = {term.name for term in cost_model.terms}
        inputs = dict.fromkeys(
            n for term in cost_model.terms for n in term.reads if n not in own | set(cost_model.functions)
        )
        out += ["", f"[{name}] inputs: " + ", ".join(f"{n} = {number(values[n])}" for n in inputs), ""]
        for term in cost_model.terms:
            filled = _filled(term.formula, values)
            out.append(
                f"{term.name} = {with_unit(values[term.name], term.unit)}"
                + (f": {term.what}" if term.what else "")
            )
            out.append(f"    = {term.formula}")
            if filled != term.formula:
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
