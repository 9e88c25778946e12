"""Pipeline schedules as pure lists of computations: who does what in which order.

fill-drain: Huang et al. 2019, "GPipe". 1F1B and interleaved 1F1B: Narayanan et al. 2021, "Efficient
Large-Scale Language Model Training on GPU Clusters", sections 2.2.1 and 2.2.2. Looped BFS: Lamy-Poirier 2023,
"Breadth-First Pipeline Parallelism". ZB-H1: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.2.
ZB-V: Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", section 3. DualPipeV: DeepSeek-AI 2024,
"DeepSeek-V3 Technical Report", section 3.2.1, DualPipe cut in half: a V in place of two directions.

Each is a function (stages, micro_batches) -> for each rank a list of Action. A rank's unit of time is a
stage's forward; F, B, I and W below are durations of one stage on one micro-batch, B = I + W.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from .actions import Action, B, F, I, Kind, Made, Schedule, W, makes, needs
from .simulator import raise_if_stuck, simulate_schedule


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


def rank_of(stage: int, ranks: int, placement: str = "loop") -> int:
    """The rank on which a stage lies: "loop" begins at rank 0 with every chunk, "v" turns at each end.

    Args:
        stage: its number.
        ranks: how many.
        placement: "loop" or "v".

    >>> from warptape.parallel.pipeline.schedules import rank_of
    >>> [rank_of(stage, 2, "v") for stage in range(4)]
    [0, 1, 1, 0]
    """
    chunk, at = divmod(stage, ranks)
    return ranks - 1 - at if placement == "v" and chunk % 2 else at


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """Fill-drain: all forwards, then all backwards. Bubble (p-1)(F+B); holds m micro-batches.

    Args:
        stages: p, one on each rank.
        micro_batches: m.

    >>> from warptape.parallel.pipeline.schedules import gpipe
    >>> [str(action) for action in gpipe(2, 1)[0]]
    ['0F0', '0B0']
    """
    ranks, m = _check(stages, micro_batches), micro_batches
    return [[Action(F, s, j) for j in range(m)] + [Action(B, s, j) for j in range(m)] for s in range(ranks)]


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """1F1B: as gpipe, but each backward as early as it can be. Rank r holds min(m, p-r) micro-batches.

    Args:
        stages: p, one on each rank.
        micro_batches: m.
    """
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
    """The micro-batches that take turns in interleaved 1F1B: groups of p or more.

    Args:
        ranks: p.
        micro_batches: m.
    """
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


def looped_bfs(stages: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Fill-drain with `chunks` stages on each rank: interleaved 1F1B's bubble, and one stage at a time.

    A rank does all micro-batches of a stage before those of its next one, so that what goes with a stage (its
    parameters' all_gather, its gradients' reduction) takes place once; it holds v * m activations of a stage.
    """
    ranks, m = _check(stages, micro_batches, chunks), range(micro_batches)
    out: Schedule = []
    for rank in range(ranks):
        of = range(rank, stages, ranks)
        out.append(
            [Action(F, s, j) for s in of for j in m] + [Action(B, s, j) for s in reversed(of) for j in m]
        )
    return out


def with_weight_gradients(schedule: Sequence[Sequence[Action]], stages: int, held: int) -> Schedule:
    """Splits full backwards, and puts each W where its rank would wait otherwise, if all took equally long.

    A rank that holds `held` activations (from F to W) makes a W before its next forward, where it can. What
    is left comes at the end. Raises ScheduleError for a schedule that locks.
    """
    todo = [deque(Action(I, a.stage, a.micro_batch) if a.kind is B else a for a in rank) for rank in schedule]
    left: list[deque[Action]] = [deque() for _ in todo]
    holds, there = [0] * len(todo), set[Made]()
    out: Schedule = [[] for _ in todo]
    while any(todo) or any(left):
        now: list[tuple[int, Action]] = []
        for rank, actions in enumerate(todo):
            full = bool(actions) and actions[0].kind is F and holds[rank] >= held and bool(left[rank])
            if actions and not full and all(need in there for need in needs(actions[0], stages)):
                now.append((rank, actions.popleft()))
            elif left[rank]:
                now.append((rank, left[rank].popleft()))
        if not now:
            raise_if_stuck([list(actions) for actions in todo], [0] * len(todo))
        for rank, action in now:
            out[rank].append(action)
            there.update(makes(action))
            holds[rank] += {F: 1, I: 0, W: -1}[action.kind]
            if action.kind is I:
                left[rank].append(Action(W, action.stage, action.micro_batch))
    return out


def _zero_bubble(schedule: Schedule, stages: int) -> Schedule:
    """The schedule with weight gradients in its gaps, on every rank as many held as the first one's."""
    return with_weight_gradients(schedule, stages, max(simulate_schedule(schedule, stages).held))


def zb_h1(stages: int, micro_batches: int) -> Schedule:
    """1F1B whose weight gradients wait for the gaps: the bubble is (p-1)(F+I-W), a third for F = I = W.

    For m < p, too few to fill the gaps with, it is (p-1)(F+I) - (m-1)W; both for W of at most F and I. Rank r
    is p-1-r forwards ahead, as in 1F1B, and leaves its first r weight gradients for the end, where 1F1B would
    wait for the ranks behind; all ranks hold min(m, p) micro-batches, as 1F1B's first.
    """
    return _zero_bubble(one_f_one_b(stages, micro_batches), stages)


def interleaved_zero_bubble(stages: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B whose weight gradients wait for the gaps: a third of its bubble for F = I = W, m >= p.

    All ranks hold what interleaved 1F1B's first does.
    """
    return _zero_bubble(interleaved_1f1b(stages, micro_batches, chunks), stages)


def _numbered(pattern: Iterable[tuple[Kind, int]], micro_batches: int) -> list[Action]:
    """Computations of stages, numbered by micro-batch; those beyond the last one are left out."""
    counts: Counter[tuple[Kind, int]] = Counter()
    out = []
    for kind, stage in pattern:
        at = counts[W if kind is W else F if kind is F else I, stage]
        if at < micro_batches:
            out.append(Action(kind, stage, at))
        counts.update((result, stage) for result, _, _ in makes(Action(kind, stage, at)))
    return out


def zb_v(stages: int, micro_batches: int) -> Schedule:
    """Two stages on each rank, rank r's are r and 2p-1-r, and weight gradients in the gaps.

    The last stage lies on the first rank, where its backward begins at once. For m >= p and F = I = W the
    bubble is p-1 of a stage's F, half of zb_h1's (whose stages are twice as large), and every rank holds
    2 min(m, p) activations of a stage, which is 1F1B's memory.
    """
    ranks = _check(stages, micro_batches, 2)
    out: Schedule = []
    for r in range(ranks):
        near, far = r, stages - 1 - r
        pattern = (
            [(F, near)] * (2 * (ranks - r) - 1)
            + [(F, far), (F, near)] * r
            + [(F, far), (I, far)] * (ranks - r)
        )
        pattern += [(F, near), (I, near), (F, far), (I, far)] * micro_batches
        out.append(_numbered(pattern, micro_batches))
    return with_weight_gradients(out, stages, 2 * ranks)


def dualpipe_v(stages: int, micro_batches: int) -> Schedule:
    """Stages as in zb_v; a forward of one of a rank's stages beside a full backward of the other.

    Only the first backwards and the last ones are split, as many as fill the gaps at both ends. For m >= 2p
    and F = I = W the bubble is p-1 of a stage's F; rank r holds min(2m, m+1+r, 2p+1) activations of a stage.
    A forward and a backward stand next to each other so that one's messages travel while the other computes
    (expert parallelism's all_to_all); this runtime does one after the other.
    """
    ranks = _check(stages, micro_batches, 2)
    # Of fewer micro-batches than stages: those of so many, without what belongs to the others.
    count = max(micro_batches, stages)
    out: Schedule = []
    for r in range(ranks):
        near, far, after = r, stages - 1 - r, ranks - 1 - r
        pattern = [(F, near)] * (2 * after) + [(F, near), (F, far)] * (r + 1)
        pattern += [(I, far), (W, far), (F, far)] * after
        pattern += [(F, near), (B, far), (F, far), (B, near)] * (count - stages + r + 1)
        pattern += [(B, far), (F, far), (B, near)] * after
        ends = [far, near] * (r + 1) + [near] * after
        pattern += [(B, stage) for stage in ends[: r + 1]]
        split = ends[r + 1 :]  # a weight gradient follows r + 1 input gradients behind
        pattern += [(I, stage) for stage in split[: r + 1]]
        for at, stage in enumerate(split):
            pattern.append((W, stage))
            pattern += [(I, s) for s in split[at + r + 1 : at + r + 2]]
        out.append([a for a in _numbered(pattern, count) if a.micro_batch < micro_batches])
    return out


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved_1f1b": interleaved_1f1b,
    "looped_bfs": looped_bfs,
    "zb_h1": zb_h1,
    "interleaved_zero_bubble": interleaved_zero_bubble,
    "zb_v": zb_v,
    "dualpipe_v": dualpipe_v,
}
