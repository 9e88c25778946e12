"""Pipeline schedules as pure lists of computations: who does what in which order.

fill-drain: Huang et al. 2019, "GPipe". 1F1B and interleaved 1F1B: Narayanan et al. 2021, "Efficient
Large-Scale Language Model Training on GPU Clusters", sections 2.2.1 and 2.2.2. ZB-H1: Qi et al. 2023,
"Zero Bubble Pipeline Parallelism", section 2.2.

Each is a function (stages, micro_batches) -> for each rank a list of Action. A rank's unit of time is a
stage's forward; F, B, I and W below are durations of one stage on one micro-batch, B = I + W.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from .actions import Action, B, F, I, Schedule, W


def _check(stages: int, micro_batches: int, chunks: int = 1) -> int:
    """The number of ranks. Raises ValueError."""
    if stages < 1 or micro_batches < 1 or chunks < 1:
        raise ValueError(
            "pipeline schedule: expected at least one stage, one micro-batch and one chunk, "
            f"got stages={stages}, micro_batches={micro_batches}, chunks={chunks}"
        )
    if stages % chunks:
        raise ValueError(
            f"pipeline schedule: {stages} stages do not divide over ranks of {chunks} stages each; "
            f"make stages a multiple of {chunks}"
        )
    return stages // chunks


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """Fill-drain: all forwards, then all backwards. Bubble (p-1)(F+B); holds m micro-batches."""
    ranks, m = _check(stages, micro_batches), micro_batches
    return [[Action(F, s, j) for j in range(m)] + [Action(B, s, j) for j in range(m)] for s in range(ranks)]


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """1F1B: as gpipe, but each backward as early as it can be. Rank r holds min(m, p-r) micro-batches."""
    ranks = _check(stages, micro_batches)
    out: Schedule = []
    for s in range(ranks):
        ahead = min(micro_batches, ranks - s - 1)
        out.append([Action(F, s, j) for j in range(ahead)])
        for j in range(micro_batches):
            if j + ahead < micro_batches:
                out[s].append(Action(F, s, j + ahead))
            out[s].append(Action(B, s, j))
    return out


def rounds_of(ranks: int, micro_batches: int) -> list[range]:
    """The micro-batches that take turns in interleaved 1F1B: groups of p or more."""
    count = max(1, micro_batches // ranks)
    edges = [micro_batches * i // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def interleaved_1f1b(stages: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """1F1B with `chunks` stages on each rank, rank r's are r, r + p, ...: the bubble is v times smaller.

    F and B of a stage are 1/v of a rank's, and the bubble (p-1) times those; v times the messages. For m < p
    it is p-1 + (p-m)(v-1) times those: a rank waits between its chunks too. The groups of micro-batches that
    take turns have p of them (Narayanan et al. need m to be a multiple of p), or some more where m is not
    such a multiple.
    """
    ranks = _check(stages, micro_batches, chunks)
    rounds = rounds_of(ranks, micro_batches)
    out: Schedule = []
    for rank in range(ranks):
        of = [rank + c * ranks for c in range(chunks)]
        forwards = [Action(F, s, j) for group in rounds for s in of for j in group]
        backwards = [Action(B, s, j) for group in rounds for s in reversed(of) for j in group]
        ahead = (chunks - 1) * max(map(len, rounds)) + 2 * (ranks - rank - 1)
        ahead = min(ahead, len(forwards))
        actions = forwards[:ahead]
        for at, backward in enumerate(backwards):
            actions += forwards[at + ahead : at + ahead + 1]
            actions.append(backward)
        out.append(actions)
    return out


def zb_h1(stages: int, micro_batches: int) -> Schedule:
    """1F1B whose weight gradients wait for the gaps: the bubble is (p-1)(F+I-W), a third for F = I = W.

    For m < p, too few to fill the gaps with, it is (p-1)(F+I) - (m-1)W; both for W of at most F and I. Rank r
    is p-1-r forwards ahead, as in 1F1B, and leaves its first r weight gradients for the end, where 1F1B would
    wait for the ranks behind; all ranks hold min(m, p) micro-batches, as 1F1B's first.
    """
    ranks = _check(stages, micro_batches)
    out: Schedule = []
    for s in range(ranks):
        ahead = min(micro_batches, ranks - s - 1)
        actions = [Action(F, s, j) for j in range(ahead)]
        for j in range(micro_batches):
            if j + ahead < micro_batches:
                actions.append(Action(F, s, j + ahead))
            actions.append(Action(I, s, j))
            if j >= s:
                actions.append(Action(W, s, j - s))
        actions += [Action(W, s, j) for j in range(max(0, micro_batches - s), micro_batches)]
        out.append(actions)
    return out


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved_1f1b": interleaved_1f1b,
    "zb_h1": zb_h1,
}
