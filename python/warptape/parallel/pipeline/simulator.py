"""Runs a schedule without processes: how long does it take, who waits, what is kept?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .actions import COMPUTE, Action, B, F, I, Kind, Made, ScheduleError, W, makes, needs, ranks_of_stages


@dataclass(frozen=True)
class Durations:
    """Of one stage on one micro-batch, in any unit; a full backward takes `i` + `w`.

    Args:
        f: of a forward.
        i: of the gradients of inputs.
        w: of the gradients of weights.
        transfer: between two ranks.
    """

    f: float = 1.0
    i: float = 1.0
    w: float = 1.0
    transfer: float = 0.0

    def of(self, kind: Kind) -> float:
        """How long a computation takes.

        Args:
            kind: of the computation.
        """
        return {F: self.f, B: self.i + self.w, I: self.i, W: self.w}[kind]


EQUAL = Durations()
Span = tuple[Action, float, float]  # what, when it begins, when it is over


@dataclass(frozen=True)
class Timeline:
    """When each computation of each rank takes place, and what follows from it.

    Args:
        spans: for each rank (action, start, end).
    """

    spans: list[list[Span]]  # of each rank

    @property
    def length(self) -> float:
        """From the first computation's start to the last one's end."""
        every = [span for rank in self.spans for span in rank]
        return max(end for _, _, end in every) - min(start for _, start, _ in every)

    @property
    def bubble(self) -> float:
        """How long the rank that works most waits; of equal stages: how long every rank does."""
        return self.length - max(sum(end - start for _, start, end in rank) for rank in self.spans)

    @property
    def held(self) -> list[int]:
        """For each rank, the most activations of a stage's micro-batch kept at once: from F to B, or to W."""
        peaks = []
        for rank in self.spans:
            now = peak = 0
            for action, _, _ in rank:
                now += {F: 1, I: 0, B: -1, W: -1}[action.kind]
                peak = max(peak, now)
            peaks.append(peak)
        return peaks

    def ends(self) -> dict[Action, float]:
        """When each computation is over."""
        return {action: end for rank in self.spans for action, _, end in rank}


def simulate_schedule(
    schedule: Sequence[Sequence[Action]], stages: int, durations: Durations = EQUAL
) -> Timeline:
    """The schedule's computations, each as early as its rank and what it needs allow; sends never wait.

    Raises: ScheduleError when ranks wait for one another for ever; it names what each waits for.
    """
    ranks, where = len(schedule), ranks_of_stages(schedule, stages)
    there: dict[Made, float] = {}
    clock, at = [0.0] * ranks, [0] * ranks
    spans: list[list[Span]] = [[] for _ in range(ranks)]
    actions = [[a for a in rank if a.kind in COMPUTE] for rank in schedule]

    def advance(rank: int) -> bool:
        if at[rank] == len(actions[rank]):
            return False
        action, start = actions[rank][at[rank]], clock[rank]
        for need in needs(action, stages):
            if need not in there:
                return False
            far = where[need[1]] != rank
            start = max(start, there[need] + (durations.transfer if far else 0.0))
        clock[rank] = start + durations.of(action.kind)
        spans[rank].append((action, start, clock[rank]))
        there.update(dict.fromkeys(makes(action), clock[rank]))
        at[rank] += 1
        return True

    while sum(advance(rank) for rank in range(ranks)):
        pass
    raise_if_stuck(actions, at)
    return Timeline(spans)


def raise_if_stuck(schedule: Sequence[Sequence[Action]], at: Sequence[int]) -> None:
    """Raises ScheduleError unless every rank is at the end of its list.

    Args:
        schedule: a list of actions for each rank.
        at: how far each rank got.
    """
    stuck = [f"rank {r} at {a[i]}" for r, (a, i) in enumerate(zip(schedule, at, strict=True)) if i < len(a)]
    if stuck:
        raise ScheduleError("deadlock: " + ", ".join(stuck))
