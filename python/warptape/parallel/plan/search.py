"""Every layout of a model on a cluster, what each needs and takes, and which are best."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .hardware import GPUS, NETWORKS, Cluster, PlanError
from .layout import RECOMPUTE, SCHEDULES, Layout, Program
from .memory import PARTS, memory_inputs, memory_model
from .shape import ModelShape
from .step_time import time_inputs, time_model

Columns = dict[str, Any]
AXES = ("tp", "pp", "cp", "ep")
USABLE = 0.95  # of a device's memory; the rest is lost between blocks
MICRO_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Job:
    """What is trained: `sequences` of `sequence` tokens a step.

    Args:
        model: its sizes.
        cluster: its devices.
        program: precision and optimizer.
        sequence: tokens of one.
        sequences: of a step.
    """

    model: ModelShape
    cluster: Cluster
    program: Program
    sequence: int
    sequences: int


def columns_of(layouts: Sequence[Layout]) -> Columns:
    """Layouts as arrays, by the names that formulas use.

    Args:
        layouts: any number.
    """
    get = lambda name: np.array([getattr(each, name) for each in layouts], dtype=np.float64)
    out = {name: get(name) for name in ("dp", "tp", "pp", "cp", "ep", "sp", "chunks", "zero")}
    out["schedule"] = np.array([SCHEDULES.index(x.schedule) for x in layouts], dtype=np.float64)
    out["recompute"] = np.array([RECOMPUTE.index(x.recompute) for x in layouts], dtype=np.float64)
    return out | {"b": get("micro_batch"), "n": get("n_microbatches")}


def layout_of(columns: Columns, at: int) -> Layout:
    """One of them.

    Args:
        columns: arrays of fields.
        at: its number.
    """
    get = lambda name: int(columns[name][at])
    names = ("dp", "tp", "pp", "cp", "ep", "chunks", "zero")
    return Layout(
        **{name: get(name) for name in names},
        sp=bool(get("sp")),
        schedule=SCHEDULES[get("schedule")],
        recompute=RECOMPUTE[get("recompute")],
        micro_batch=get("b"),
        n_microbatches=get("n"),
    )


def stages_of(columns: Columns) -> list[dict[str, Any]]:
    """Inputs of the first stage and of the last, which are one without a pipeline: the others hold less than
    the first."""
    one = columns["pp"] == 1
    return [
        {"first": 1.0, "last": np.where(one, 1.0, 0.0), "rank": 0.0},
        {"first": np.where(one, 1.0, 0.0), "last": 1.0, "rank": columns["pp"] - 1},
    ]


def memory_of(job: Job, columns: Columns) -> dict[str, Any]:
    """All terms of memory, for the stage that needs most.

    Args:
        job: what is trained.
        columns: layouts, as arrays.
    """
    cost_model, inputs = (
        memory_model(job.model),
        memory_inputs(job.model, job.cluster, job.program, job.sequence),
    )
    first, last = (cost_model.evaluate({**inputs, **columns, **stage}) for stage in stages_of(columns))
    larger = last["memory"] > first["memory"]
    names = [term.name for term in cost_model.terms] + ["first", "last", "rank"]
    return {**first, **{name: np.where(larger, last[name], first[name]) for name in names}}


def time_of(job: Job, columns: Columns) -> dict[str, Any]:
    """All terms of a step's time.

    Args:
        job: what is trained.
        columns: layouts, as arrays.
    """
    m, tp, pp = job.model, columns["tp"], columns["pp"]
    ends = m.vocabulary * m.width / tp
    return time_model(m).evaluate(
        {
            **time_inputs(m, job.cluster, job.program, job.sequence),
            **columns,
            "stage_dense": m.layer_parameters / pp / tp + ends,
            "stage_experts": m.expert_parameters / pp / tp / columns["ep"],
        }
    )


def divisors(n: int) -> list[int]:
    """Of n, in order.

    Args:
        n: at least 1.

    >>> from warptape.parallel.plan.search import divisors
    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [d for d in range(1, n + 1) if n % d == 0]


def check_layout(job: Job, layout: Layout) -> None:
    """Raises PlanError for a layout that does not divide; it says what to change.

    Args:
        job: what is trained.
        layout: of its ranks.
    """
    m, gpus = job.model, job.cluster.gpus
    numbers = [f.name for f in fields(Layout) if f.type == "int" and f.name != "zero"]
    for name in numbers:
        value = getattr(layout, name)
        if type(value) is not int or value < 1:
            raise PlanError(f"layout: expected {name} to be a whole number above 0, got {value!r}")
    if layout.zero not in (0, 1, 2, 3):
        raise PlanError(f"layout: expected zero to be 0, 1, 2 or 3, got {layout.zero!r}")
    for name, known in (("schedule", SCHEDULES), ("recompute", RECOMPUTE)):
        if getattr(layout, name) not in known:
            raise PlanError(
                f"layout: expected {name} to be one of {', '.join(known)}, got {getattr(layout, name)!r}"
            )
    if layout.ranks != gpus:
        raise PlanError(
            f"layout: dp {layout.dp} * cp {layout.cp} * tp {layout.tp} * pp {layout.pp} = {layout.ranks} "
            f"ranks, and there are {gpus} GPUs; make the product {gpus}"
        )
    wrong = [
        (
            m.heads % layout.tp or (m.kv_heads % layout.tp and layout.tp % m.kv_heads),
            f"{m.heads} heads ({m.kv_heads} of keys) by tp={layout.tp}",
        ),
        (
            not divides_layers(m.layers, layout.pp, layout.chunks),
            f"{m.layers} layers by pp={layout.pp} * chunks={layout.chunks} stages",
        ),
        (
            job.sequence % (2 * layout.cp) if layout.cp > 1 else 0,
            f"{job.sequence} tokens by 2 * cp={2 * layout.cp}",
        ),
        (layout.dp * layout.cp % layout.ep, f"dp * cp = {layout.dp * layout.cp} by ep={layout.ep}"),
        (
            layout.ep > 1 and (not m.experts or m.experts % layout.ep),
            f"{m.experts} experts by ep={layout.ep}",
        ),
        (
            layout.sp and job.sequence // layout.cp % layout.tp,
            f"{job.sequence // layout.cp} tokens by tp={layout.tp} with sp",
        ),
        (
            layout.dp * layout.micro_batch * layout.n_microbatches != job.sequences,
            f"a batch of {job.sequences} sequences by dp={layout.dp} * micro_batch={layout.micro_batch}"
            f" * n_microbatches={layout.n_microbatches}",
        ),
        (
            layout.chunks > 1 and layout.schedule != "Interleaved1F1B",
            f"chunks={layout.chunks} with schedule {layout.schedule}, which has one stage on a rank",
        ),
    ]
    for bad, what in wrong:
        if bad:
            raise PlanError(f"layout: {what} does not divide; change one of them")


def divides_layers(layers: int, pp: int, chunks: int) -> bool:
    """Whether stages have as many layers each, but for up to three that ends lack for embedding and head.

    Args:
        layers: of the model.
        pp: stages in a row.
        chunks: stages on a rank.
    """
    return any((layers + more) % (pp * chunks) == 0 for more in ((0, 1, 2, 3) if pp > 1 else (0,)))


def enumerate_layouts(job: Job, fixed: Mapping[str, Sequence[Any]]) -> Columns:
    """Every layout that divides. `fixed`: for some fields of Layout the values to try.

    Args:
        job: what is trained.
        fixed: as {"tp": [8]}.
    """
    m, gpus = job.model, job.cluster.gpus
    tried = lambda name, all_: [x for x in all_ if x in fixed[name]] if name in fixed else list(all_)
    blocks: list[np.ndarray] = []
    per_gpu = divisors(gpus)
    shapes = [
        (tp, pp, cp)
        for tp, pp, cp in itertools.product(
            tried(
                "tp",
                [d for d in per_gpu if m.heads % d == 0 and (m.kv_heads % d == 0 or d % m.kv_heads == 0)],
            ),
            tried("pp", [d for d in per_gpu if d <= m.layers]),
            tried("cp", [d for d in per_gpu if d == 1 or job.sequence % (2 * d) == 0]),
        )
        if gpus % (tp * pp * cp) == 0
    ]
    for tp, pp, cp in shapes:
        dp = gpus // (tp * pp * cp)
        if job.sequences % dp or ("dp" in fixed and dp not in fixed["dp"]):
            continue
        depth = job.sequences // dp
        batches = [b for b in tried("micro_batch", MICRO_BATCHES) if depth % b == 0]
        experts = [e for e in divisors(dp * cp) if m.experts and m.experts % e == 0] if m.experts else [1]
        spread = [0, 1] if tp > 1 and job.sequence // cp % tp == 0 else [0]
        blocks += _block(
            job, (tp, pp, cp, dp, depth), batches, tried("ep", experts), tried("sp", spread), tried
        )
    if not blocks:
        raise PlanError(
            f"no layout divides: {m.heads} heads, {m.layers} layers, {job.sequences} sequences of "
            f"{job.sequence} tokens on {gpus} GPUs"
            + (f" with {', '.join(f'{k}={list(v)}' for k, v in fixed.items())}" if fixed else "")
            + "; change the number of GPUs, or the batch to a multiple of it"
        )
    table = np.concatenate(blocks)
    names = ("dp", "tp", "pp", "cp", "ep", "sp", "schedule", "chunks", "zero", "recompute", "b", "n")
    return {name: table[:, i] for i, name in enumerate(names)}


def _block(
    job: Job, sizes: tuple[int, ...], batches: list[int], experts: list[int], spread: list[int], tried: Any
) -> Iterable[np.ndarray]:
    """The layouts of one shape of the axes, a row each."""
    tp, pp, cp, dp, depth = sizes
    recompute = [RECOMPUTE.index(x) for x in tried("recompute", RECOMPUTE)]
    zeros = tried("zero", [0, 1, 2, 3] if dp * cp > 1 else [0])
    for b in batches:
        n = depth // b
        pipes = []
        for name in tried("schedule", SCHEDULES[:4]):
            kind = SCHEDULES.index(name)
            if pp == 1 and kind != 1:
                continue
            most = -(-job.model.layers // pp)
            chunks = [v for v in range(2, most + 1) if n % pp == 0] if kind == 2 else [1]
            pipes += [(kind, v) for v in tried("chunks", chunks) if divides_layers(job.model.layers, pp, v)]
        grid = [
            (dp, tp, pp, cp, ep, sp, kind, v, zero, again, b, n)
            for (kind, v), ep, sp, zero, again in itertools.product(pipes, experts, spread, zeros, recompute)
        ]
        if grid:
            yield np.array(grid, dtype=np.float64)


def memory_of_rank(
    model: ModelShape, layout: Layout, sequence: int, program: Program, cluster: Cluster | None = None
) -> dict[str, float]:
    """Bytes of the rank that needs most, part by part, and "memory", its peak.

    Args:
        model: its sizes.
        layout: of its ranks.
        sequence: tokens of one.
        program: precision and optimizer.
        cluster: 80 GB devices if None.
    """
    cluster = cluster or Cluster(layout.ranks, GPUS["h100"], NETWORKS["ndr400"])
    sequences = layout.dp * layout.micro_batch * layout.n_microbatches
    terms = memory_of(Job(model, cluster, program, sequence, sequences), columns_of([layout]))
    return {name: float(np.ravel(terms[name])[0]) for name in (*PARTS, "memory")}
