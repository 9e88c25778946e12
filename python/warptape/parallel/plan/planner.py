"""`plan`: from a model and a cluster to layouts, best first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .estimates import Estimate
from .hardware import EFFICIENCY, Cluster, Gpu, Network, PlanError, read_gpu, read_network
from .layout import RECOMPUTE, SCHEDULES, Layout, Program
from .memory import PARTS as MEMORY_PARTS
from .memory import memory_model
from .report import explained, scaling_sentence, table_of
from .search import (
    USABLE,
    Columns,
    Job,
    check_layout,
    columns_of,
    enumerate_layouts,
    layout_of,
    memory_of,
    time_of,
)
from .shape import read_model
from .step_time import PARTS as TIME_PARTS
from .step_time import time_model

FIELDS = ("dp", "tp", "pp", "cp", "ep", "sp", "schedule", "chunks", "zero", "recompute", "micro_batch")
MOST_GPUS = 1 << 20


@dataclass(frozen=True)
class Plan:
    """Every layout of a job. What `plan` returns.

    Args:
        job: what is trained.
        tokens: of the whole training.
        price: of a device's hour.
        columns: the layouts' fields, as arrays.
        memory, step: bytes and seconds of each layout.
        fits: whether memory suffices.
    """

    job: Job
    tokens: float
    price: float
    columns: Columns
    memory: np.ndarray  # bytes of a rank, for each layout
    step: np.ndarray  # seconds
    fits: np.ndarray

    @cached_property
    def order(self) -> np.ndarray:
        """Numbers of the layouts that fit, best first; of equal ones that which needs less memory."""
        fitting = np.flatnonzero(self.fits)
        return fitting[np.lexsort((self.columns["cp"][fitting], self.memory[fitting], self.step[fitting]))]

    @property
    def best(self) -> Layout:
        """The fastest layout that fits."""
        return layout_of(self.columns, self.order[0])

    @property
    def layouts(self) -> list[Layout]:
        """All that fit, best first."""
        return self.top(len(self.order))

    def top(self, n: int) -> list[Layout]:
        """The n fastest layouts that fit, best first.

        Args:
            n: how many.
        """
        return [layout_of(self.columns, at) for at in self.order[:n]]

    def estimate(self, layout: Layout | None = None) -> Estimate:
        """What a layout needs and takes; of the best one, if none is given. Raises PlanError for one that
        does not divide."""
        layout = self.best if layout is None else layout
        check_layout(self.job, layout)
        return estimate(self.job, layout, self.tokens, self.price)

    def table(self, n: int = 10) -> str:
        """The n best layouts, what each needs and takes, as a table in text.

        Args:
            n: how many.
        """
        return table_of(
            self.job, [self.estimate(each) for each in self.top(n)], len(self.memory), len(self.order)
        )

    def explain(self, layout: Layout | None = None) -> str:
        """Every term of a layout's memory and time: its formula, its numbers, and what it is.

        Args:
            layout: the best one if None.
        """
        layout = self.best if layout is None else layout
        check_layout(self.job, layout)
        columns = columns_of([layout])
        memory, time = memory_of(self.job, columns), time_of(self.job, columns)
        model = self.job.model
        return explained(
            str(layout), [("memory", memory_model(model), memory), ("time", time_model(model), time)]
        )

    def scaling(self, gpus: Iterable[int] | None = None) -> list[tuple[int, Estimate | None]]:
        """The best layout for other numbers of devices, None where none fits: an extrapolation. The batch
        stays, but for the nearest multiple that so many devices can share."""
        counts = [1 << i for i in range(14)] + [10000] if gpus is None else list(gpus)
        return [(count, self._at(count)) for count in counts]

    def _at(self, gpus: int) -> Estimate | None:
        odd = gpus
        while odd % 2 == 0:
            odd //= 2
        sequences = max(round(self.job.sequences / odd), 1) * odd
        job = Job(
            self.job.model, self.job.cluster.scaled(gpus), self.job.program, self.job.sequence, sequences
        )
        some = {"schedule": ("1F1B", "Interleaved1F1B"), "zero": (0, 1, 3), "micro_batch": (1, 2, 4)}
        try:
            best = _searched(job, some, self.tokens, self.price)
        except PlanError:
            return None
        return best.estimate() if len(best.order) else None

    def scaling_sentence(self, points: list[tuple[int, Estimate | None]] | None = None) -> str:
        """What stops the scaling.

        Args:
            points: what `scaling` returned; computed if None.
        """
        return scaling_sentence(self.job, self.scaling() if points is None else points)


def estimate(job: Job, layout: Layout, tokens: float = 0.0, price: float = 0.0) -> Estimate:
    """What one layout of a job needs and takes; it is not checked.

    Args:
        job: what is trained.
        layout: of its ranks.
        tokens: of the whole training.
        price: of a device's hour.
    """
    columns = columns_of([layout])
    memory, time = memory_of(job, columns), time_of(job, columns)
    one = lambda terms, name: float(np.ravel(terms[name])[0])
    step, batch = one(time, "step"), job.sequences * job.sequence
    flops = job.model.flops_per_token(job.sequence) * batch
    again = {"none": 0.0, "selective": 0.0, "full": 1 / 3}[layout.recompute]
    head = 6 * job.model.vocabulary * job.model.width * batch  # is never recomputed
    peak, gpus = job.cluster.gpu.peak, job.cluster.gpus
    seconds = tokens / batch * step
    held = one(memory, "memory")
    return Estimate(
        layout,
        held <= USABLE * job.cluster.memory,
        held,
        {name: one(memory, name) for name in MEMORY_PARTS},
        step,
        {name: one(time, name) for name in TIME_PARTS},
        flops / step / gpus / peak,
        (flops + again * (flops - head)) / step / gpus / peak,
        batch / step,
        seconds / 86400,
        seconds / 3600 * gpus * price,
    )


def _searched(job: Job, fixed: Mapping[str, Any], tokens: float, price: float) -> Plan:
    columns = enumerate_layouts(job, fixed)
    memory = np.broadcast_to(memory_of(job, columns)["memory"], columns["dp"].shape)
    step = np.broadcast_to(time_of(job, columns)["step"], columns["dp"].shape)
    return Plan(job, tokens, price, columns, memory, step, memory <= USABLE * job.cluster.memory)


def plan(
    model: Any,
    gpus: int,
    gpu: str | Gpu | Mapping[str, Any] = "h100",
    network: str | Network | Mapping[str, Any] = "ndr400",
    *,
    sequence: int | None = None,
    batch_tokens: float = 4e6,
    tokens: float = 300e9,
    price: float | None = None,
    program: Program | None = None,
    efficiency: float = EFFICIENCY,
    **fixed: Any,
) -> Plan:
    """Estimates every layout of a model on a cluster.

    Args:
        model: a name of shape.MODELS, a config.json, "script.py:model", a DecoderConfig, a model with one,
            or a ModelShape.
        gpus: how many devices; gpu, network: a name, a .toml or .json file, a dict of fields, or the object.
        sequence: tokens of one; None: the model's context.
        batch_tokens: of a step, over all devices; rounded to whole sequences, and to a multiple of 64 where
            there are that many.
        tokens: the budget for days and cost; price: of a device for an hour; None: the device's own.
        program: what decides beside the layout; see Program.
        fixed: fields of Layout and the value, or the values, to try: tp=8, recompute=("none", "full").

    Raises: PlanError for unknown names, wrong files and numbers, where no layout divides, and where none
        fits: then it says how much would be needed.
    """
    shape = read_model(model)
    cluster = Cluster(gpus, read_gpu(gpu), read_network(network), efficiency)
    sequence = shape.sequence if sequence is None else sequence
    if type(sequence) is not int or sequence < 1:
        raise PlanError(f"plan: expected sequence to be a whole number above 0, got {sequence!r}")
    for name, value in (("batch_tokens", batch_tokens), ("tokens", tokens)):
        if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise PlanError(f"plan: expected {name} to be a number above 0, got {value!r}")
    if price is not None and not 0 <= price < float("inf"):
        raise PlanError(f"plan: expected price to be a number, not negative, got {price!r}")
    if batch_tokens < sequence:
        raise PlanError(
            f"plan: batch_tokens of a step, {batch_tokens:g}, are fewer than the {sequence} of one sequence; "
            "raise them, or plan for shorter sequences"
        )
    sequences = round(batch_tokens / sequence)
    if sequences > 64:
        sequences = round(sequences / 64) * 64
    job = Job(shape, cluster, program or Program(), sequence, sequences)
    best = _searched(job, _fixed(fixed), tokens, cluster.gpu.price if price is None else price)
    if not len(best.order):
        raise PlanError(_too_large(job, best, fixed))
    return best


def _fixed(given: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    known = {"schedule": SCHEDULES[:4], "recompute": RECOMPUTE, "zero": (0, 1, 2, 3), "sp": (False, True)}
    out = {}
    for name, value in given.items():
        if name not in FIELDS:
            raise PlanError(f"plan: unknown field {name!r} of a layout; expected some of {', '.join(FIELDS)}")
        values = tuple(value) if isinstance(value, (tuple, list, range)) else (value,)
        for each in values:
            fits = each in known[name] if name in known else type(each) is int and each > 0
            if not fits:
                expected = f"one of {known[name]}" if name in known else "a whole number above 0"
                raise PlanError(f"plan: expected {name} to be {expected}, got {each!r}")
        out[name] = values
    return out


def _too_large(job: Job, found: Plan, fixed: Mapping[str, Any]) -> str:
    """What would be needed."""
    least = int(found.memory.argmin())
    memory, gpu = float(found.memory[least]), job.cluster.gpu
    text = (
        f"{job.model.name} ({job.model.parameters / 1e9:.1f} B parameters) fits in no layout of "
        f"{job.cluster.gpus} {gpu.name}: the least is {memory / 1e9:.1f} GB a device "
        f"({layout_of(found.columns, least)}), and {USABLE * gpu.memory / 1e9:.1f} of "
        f"{gpu.memory / 1e9:.0f} GB are usable"
    )
    count = job.cluster.gpus
    while count < MOST_GPUS:
        count *= 2
        larger = Job(job.model, job.cluster.scaled(count), job.program, job.sequence, job.sequences)
        try:
            if len(_searched(larger, _fixed(fixed), 1.0, 0.0).order):
                return f"{text}; use {count} of them, or devices of {memory / USABLE / 1e9:.0f} GB"
        except PlanError:
            break
    return f"{text}; use devices of {memory / USABLE / 1e9:.0f} GB, or shorter sequences"
