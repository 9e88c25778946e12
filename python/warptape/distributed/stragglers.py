"""Which ranks are slow: how long each takes for its own work, and how long it waits for the others.

In a synchronous step all ranks take equally long, for the fast wait for the slow. What tells them apart is
the time that a rank does not wait: `StepTimer` takes both apart, and `straggler_report` compares the ranks.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._C import _distributed as _C
from ..core.tables import aligned
from .groups import get_process_group_ranks, get_world_size
from .objects import all_gather_object
from .state import Group, peek_state

__all__ = ["SectionTimes", "StepTimer", "StragglerReport", "straggler_report"]

WAIT = "wait"


class StepTimer:
    """Seconds of a rank's steps by section.

    Within `with timer.step():` three sections are timed by themselves: "step", all of it; "wait", what this
    rank stood in calls between ranks (collectives, sends, `Work.wait()`, the reduction of DDP), transfers
    included; and "compute", the rest. `with timer.section("forward"):` times a part of a step, without the
    waits in it; the times of a section that is entered several times in a step are added. On CUDA devices
    calls return before their work is done: give `synchronize=torch.cuda.synchronize`, or the sections tell
    how long the host took. NCCL's calls wait on the device and not on the host: there, time the work up to
    the collective as a section of its own.

    Args:
        synchronize: called before each reading of the clock.

    >>> timer = torch.distributed.StepTimer()
    >>> for _ in range(3):
    ...     with timer.step(), timer.section("forward"):
    ...         y = torch.ones(8, 8) @ torch.ones(8, 8)
    >>> sorted(timer.seconds), len(timer.seconds["compute"])
    (['compute', 'forward', 'step', 'wait'], 3)
    """

    def __init__(self, synchronize: Callable[..., Any] | None = None) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._synchronize = synchronize
        self._open: dict[str, float] | None = None  # of the step that runs

    def _now(self) -> tuple[float, float]:
        """The clock, and what was waited up to now."""
        if self._synchronize is not None:
            self._synchronize()
        return time.perf_counter(), 0.0 if peek_state() is None else _C._waited()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A step; one that raises is not recorded. RuntimeError within another.

        >>> from warptape.distributed.stragglers import StepTimer
        >>> timer = StepTimer()
        >>> with timer.step():
        ...     with timer.section("data"):
        ...         batch = torch.ones(2)
        """
        if self._open is not None:
            raise RuntimeError("StepTimer.step: a step is being timed; leave it first")
        self._open = {}
        start, waited = self._now()
        try:
            yield
            end, waited_then = self._now()
            step, wait = end - start, waited_then - waited
            times = self._open | {"step": step, WAIT: wait, "compute": max(step - wait, 0.0)}
            for name, seconds in times.items():
                self.seconds.setdefault(name, []).append(seconds)
        finally:
            self._open = None

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """A part of a step. RuntimeError outside of one, ValueError for the names that a step has itself.

        Args:
            name: of the part, the same in all steps.
        """
        if self._open is None:
            raise RuntimeError(f"StepTimer.section({name!r}): there is no step; enter timer.step() first")
        if name in ("step", "compute", WAIT):
            raise ValueError(f"StepTimer.section: {name!r} is timed by step() itself; take another name")
        start, waited = self._now()
        yield
        end, waited_then = self._now()
        self._open[name] = self._open.get(name, 0.0) + max(end - start - (waited_then - waited), 0.0)


@dataclass(frozen=True)
class SectionTimes:
    """One section over all ranks, in seconds.

    Attributes:
        median: of the ranks' medians; of an even number, the smaller of the two in the middle.
        p95: what 95 % of all steps of all ranks took at most (nearest rank).
        max: the longest of all steps.
        by_rank: each rank's median.
        slow: ranks whose median is over `factor` times `median`; none for "wait", where the slow wait least.
    """

    median: float
    p95: float
    max: float
    by_rank: dict[int, float]
    slow: list[int]


@dataclass(frozen=True)
class StragglerReport:
    """What `straggler_report` returns, on every rank the same: the sections by name.

    Args:
        sections: times by name.
        factor: how many times the median is slow.
    """

    sections: dict[str, SectionTimes]
    factor: float

    @property
    def stragglers(self) -> list[int]:
        """Ranks that are slow in some section."""
        return sorted({rank for times in self.sections.values() for rank in times.slow})

    def table(self) -> str:
        """A line for each section, in milliseconds, with the ranks that are slow in it."""
        rows: list[tuple[str, ...]] = [("section", "median", "p95", "max", "slow ranks")]
        for name, t in self.sections.items():
            slow = ", ".join(f"{r} ({t.by_rank[r] / t.median:.1f}x)" if t.median else f"{r}" for r in t.slow)
            rows.append((name, *(f"{1e3 * x:.3f}" for x in (t.median, t.p95, t.max)), slow or "-"))
        return aligned(rows)

    __str__ = table


def _section(name: str, seconds: dict[int, list[float]], factor: float) -> SectionTimes:
    by_rank = {rank: statistics.median(values) for rank, values in seconds.items()}
    median = statistics.median_low(by_rank.values())
    every = sorted(value for values in seconds.values() for value in values)
    slow = [] if name == WAIT else [rank for rank, value in by_rank.items() if value > factor * median]
    return SectionTimes(median, every[math.ceil(0.95 * len(every)) - 1], every[-1], by_rank, slow)


def straggler_report(
    times: StepTimer | Mapping[str, Sequence[float]], group: Group = None, factor: float = 1.5
) -> StragglerReport:
    """Gathers the ranks' times and says which ranks are slow. A collective: every rank of the group calls it.

    Args:
        times: what this rank's StepTimer recorded, or seconds by section.
        group: whose ranks are compared; the default group unless given. Without one, this process alone.
        factor: a rank is slow in a section when its median is over that many times the ranks' median.

    Raises:
        ValueError: a factor of less than 1, or no times at all on any rank.

    >>> import time
    >>> def run():
    ...     timer = torch.distributed.StepTimer()
    ...     for _ in range(3):
    ...         with timer.step():
    ...             time.sleep(0.05 if torch.distributed.get_rank() == 2 else 0.001)
    ...             torch.distributed.barrier()
    ...     return torch.distributed.straggler_report(timer, factor=3).stragglers
    >>> torch.distributed.simulate(3, run)  # on ranks that are threads
    [[2], [2], [2]]
    """
    if not factor >= 1:
        raise ValueError(f"straggler_report: expected a factor of at least 1, got {factor}")
    own = times.seconds if isinstance(times, StepTimer) else times
    plain = {name: [float(x) for x in seconds] for name, seconds in own.items() if len(seconds)}
    ranks, tables = [0], [plain]
    if peek_state() is not None:
        ranks, tables = get_process_group_ranks(group), [{}] * get_world_size(group)
        all_gather_object(tables, plain, group)
    names = dict.fromkeys(name for each in tables for name in each)
    if not names:
        raise ValueError("straggler_report: no rank has recorded a step")
    sections = {
        name: _section(
            name, {rank: each[name] for rank, each in zip(ranks, tables, strict=True) if name in each}, factor
        )
        for name in names
    }
    return StragglerReport(sections, factor)
