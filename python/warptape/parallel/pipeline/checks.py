"""Checks a schedule without processes: is it complete, is everything sent and received, can it lock?"""

from __future__ import annotations

from collections.abc import Sequence

from .actions import (
    COMPUTE,
    SENDS,
    Action,
    F,
    I,
    Kind,
    Made,
    Schedule,
    ScheduleError,
    W,
    makes,
    needs,
    ranks_of_stages,
    transfers_of,
    with_transfers,
)
from .simulator import EQUAL, Durations, Timeline, raise_if_stuck, simulate_schedule

_MADE = {F: "forward", I: "gradient of the input", W: "gradient of the weights"}


def check_complete(schedule: Sequence[Sequence[Action]], stages: int, micro_batches: int) -> None:
    """Raises ScheduleError unless every stage does every micro-batch once, forward and backward, on its
    rank, and a rank's list has no action before another of the same rank that it needs."""
    where, there = ranks_of_stages(schedule, stages), set[Made]()
    for rank, actions in enumerate(schedule):
        for action in actions:
            if action.kind not in COMPUTE:
                continue
            if not 0 <= action.stage < stages or where[action.stage] != rank:
                raise ScheduleError(f"rank {rank}: {action} is of a stage that does not lie there")
            if not 0 <= action.micro_batch < micro_batches:
                raise ScheduleError(f"rank {rank}: {action}: there are {micro_batches} micro-batches")
            for need in needs(action, stages):
                if where[need[1]] == rank and need not in there:
                    raise ScheduleError(f"rank {rank}: {action} comes before {Action(*need)}")
            for result in makes(action):
                if result in there:
                    raise ScheduleError(f"rank {rank}: {action} makes a {_MADE[result[0]]} a second time")
                there.add(result)
    for stage in range(stages):
        for j in range(micro_batches):
            for kind, what in _MADE.items():
                if (kind, stage, j) not in there:
                    raise ScheduleError(f"stage {stage}, micro-batch {j}: the {what} is missing")


def check_transfers(schedule: Sequence[Sequence[Action]], stages: int) -> None:
    """Raises ScheduleError unless everything made for another rank is sent once and received once.

    Args:
        schedule: a list of actions for each rank.
        stages: how many.
    """
    where = ranks_of_stages(schedule, stages)
    wanted: dict[Action, int] = {}
    for actions in schedule:
        for action in actions:
            pair = transfers_of(action, where) if action.kind in COMPUTE else None
            wanted |= {half: where[half.stage] for half in pair or ()}
    for rank, actions in enumerate(schedule):
        for action in actions:
            if action.kind not in COMPUTE and wanted.pop(action, None) != rank:
                raise ScheduleError(f"rank {rank}: {action} is there twice, or for nothing")
    for action, rank in wanted.items():
        raise ScheduleError(f"rank {rank}: {action} is missing")


def check_blocking(schedule: Sequence[Sequence[Action]], stages: int) -> None:
    """Runs a schedule with transfers whose sends and receives wait for each other; each is one step of both
    ranks. Raises ScheduleError on a deadlock, and when an action comes before what it needs is there."""
    ranks, where = len(schedule), ranks_of_stages(schedule, stages)
    at = [0] * ranks
    there: list[set[Made]] = [set() for _ in schedule]  # on each rank

    def advance(rank: int) -> bool:
        if at[rank] == len(schedule[rank]):
            return False
        action = schedule[rank][at[rank]]
        if action.kind in COMPUTE:
            for need in needs(action, stages):
                if need not in there[rank]:
                    raise ScheduleError(f"rank {rank}: {action} comes before what it needs is received")
            there[rank].update(makes(action))
        elif action.kind in SENDS:
            receive, results = _meets(action)
            peer = where[receive.stage]
            if results not in there[rank]:
                raise ScheduleError(f"rank {rank}: {action} comes before what it sends")
            if at[peer] == len(schedule[peer]) or schedule[peer][at[peer]] != receive:
                return False
            there[peer].add(results)
            at[peer] += 1
        else:
            return False  # its sender takes both along
        at[rank] += 1
        return True

    while sum(advance(rank) for rank in range(ranks)):
        pass
    raise_if_stuck(schedule, at)


def _meets(send: Action) -> tuple[Action, Made]:
    """The receive of a send, and what they carry."""
    s, j = send.stage, send.micro_batch
    if send.kind is Kind.SEND_F:
        return Action(Kind.RECV_F, s + 1, j), (F, s, j)
    return Action(Kind.RECV_B, s - 1, j), (I, s, j)


def check_schedule(schedule: Sequence[Sequence[Action]], stages: int, micro_batches: int) -> None:
    """Raises ScheduleError unless the schedule, with its transfers, runs to the end and does it all.

    Args:
        schedule: a list of actions for each rank.
        stages, micro_batches: how many.
    """
    check_complete(schedule, stages, micro_batches)
    check_transfers(schedule, stages)
    check_blocking(schedule, stages)


def plan(
    schedule: Sequence[Sequence[Action]], stages: int, micro_batches: int, durations: Durations = EQUAL
) -> tuple[Schedule, Timeline]:
    """Puts the transfers into a schedule of computations and checks the whole; returns it and its timeline.

    Raises: ScheduleError.
    """
    check_complete(schedule, stages, micro_batches)
    timeline = simulate_schedule(schedule, stages, durations)
    full = with_transfers(schedule, timeline.ends(), stages)
    check_schedule(full, stages, micro_batches)
    return full, timeline
