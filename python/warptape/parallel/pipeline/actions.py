"""What a schedule is made of, and where transfers between ranks go in it.

Legend: p ranks, v chunks (stages on one rank), S = p * v stages, m micro-batches. On which rank a stage lies
is what a schedule's lists say: see ranks_of_stages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """What is done; the letters are those of torch.distributed.pipelining.

    They are F (forward), B (full backward), I (gradients of inputs), W (of weights), and the transfers.
    """

    FORWARD = "F"
    FULL_BACKWARD = "B"  # input and weight gradients together
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"


F, B, I, W = Kind.FORWARD, Kind.FULL_BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT
COMPUTE = (F, B, I, W)
SENDS = (Kind.SEND_F, Kind.SEND_B)
_TEXT = re.compile(rf"(\d+)({'|'.join(kind.value for kind in Kind)})(\d+)")


@dataclass(frozen=True)
class Action:
    """One entry of a rank's list: a computation of a stage on a micro-batch, or a transfer.

    SEND_F sends a stage's output, RECV_F takes a stage's input; SEND_B sends the gradient of a stage's
    input, RECV_B takes that of its output.
    """

    kind: Kind
    stage: int
    micro_batch: int

    @classmethod
    def parse(cls, text: str) -> Action:
        """The action that `str` wrote, such as "2F0". Raises ValueError for other text.

        Args:
            text: stage, kind and micro-batch.

        >>> from warptape.parallel.pipeline import Action
        >>> Action.parse("2F0").stage
        2
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"pipeline: {text!r} is no action; expected one such as '2F0' or '2SEND_F0'")
        return cls(Kind(match[2]), int(match[1]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.micro_batch}"

    __repr__ = __str__


Schedule = list[list[Action]]  # for each rank, in the order in which it acts


class ScheduleError(ValueError):
    """A schedule that would not run: an action missing or twice, out of order, or a deadlock.

    The message names the rank and the action.
    """


def ranks_of_stages(schedule: Sequence[Sequence[Action]], stages: int) -> list[int]:
    """For each stage the rank whose list has its forwards. Raises ScheduleError for a stage of no rank.

    Args:
        schedule: a list of actions for each rank.
        stages: how many.
    """
    where = {a.stage: rank for rank, actions in enumerate(schedule) for a in actions if a.kind is F}
    for stage in range(stages):
        if stage not in where:
            raise ScheduleError(f"stage {stage}: no rank does its forward")
    return [where[stage] for stage in range(stages)]


Made = tuple[Kind, int, int]  # what a computation makes or needs: F, I or W of a stage and a micro-batch


def makes(action: Action) -> list[Made]:
    """What is there after a computation: F an output, I the gradient of an input, W those of weights.

    Args:
        action: a computation.
    """
    kinds = (I, W) if action.kind is B else (action.kind,)
    return [(kind, action.stage, action.micro_batch) for kind in kinds]


def needs(action: Action, stages: int) -> list[Made]:
    """What must be there before a computation.

    Args:
        action: a computation.
        stages: how many.
    """
    s, j = action.stage, action.micro_batch
    if action.kind is F:
        return [(F, s - 1, j)] if s else []
    if action.kind is W:
        return [(I, s, j)]
    return [(F, s, j)] + ([(I, s + 1, j)] if s + 1 < stages else [])


def transfers_of(action: Action, where: Sequence[int]) -> tuple[Action, Action] | None:
    """The send and the receive of what a computation makes; None when it stays on its rank. `where` has the
    rank of each stage."""
    s, j = action.stage, action.micro_batch
    if action.kind is F and s + 1 < len(where) and where[s + 1] != where[s]:
        return Action(Kind.SEND_F, s, j), Action(Kind.RECV_F, s + 1, j)
    if action.kind in (B, I) and s > 0 and where[s - 1] != where[s]:
        return Action(Kind.SEND_B, s, j), Action(Kind.RECV_B, s - 1, j)
    return None


def with_transfers(schedule: Sequence[Sequence[Action]], ends: dict[Action, float], stages: int) -> Schedule:
    """The schedule with its sends and receives.

    `ends` tells when each computation is over in some run of the schedule. Note [One order of transfers]: all
    transfers are put into one order, by the time at which what they carry is made, and each rank's list
    follows it. So with sends that wait for their receiver, the first transfer that has not taken place is
    next on both of its ranks, and nothing can lock; and the messages between two ranks are sent in the order
    in which they are received, which backends without tags need.
    """
    where = ranks_of_stages(schedule, stages)
    events: list[tuple[float, int, int, int, Action]] = []  # (time, computations first, tie, rank, what)
    for rank, actions in enumerate(schedule):
        for at, action in enumerate(actions):
            events.append((ends[action], 0, at, rank, action))
            pair = transfers_of(action, where)
            if pair is not None:
                tie = (action.stage * 2 + (action.kind is not F)) * 1_000_000 + action.micro_batch
                events.append((ends[action], 1, tie, rank, pair[0]))
                events.append((ends[action], 1, tie, where[pair[1].stage], pair[1]))
    out: Schedule = [[] for _ in schedule]
    for _, _, _, rank, action in sorted(events, key=lambda e: e[:4]):
        out[rank].append(action)
    return out
