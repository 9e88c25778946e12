"""Pipeline schedules and their checker, without processes: every schedule up to 8 ranks and 32 micro-batches
against its formulas, and schedules with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from warptape.parallel import pipeline as pp
from warptape.parallel.pipeline import Action, Durations, Kind, ScheduleError

RANKS, MICRO_BATCHES = range(1, 9), range(1, 33)
EQUAL = Durations(f=1, i=1, w=1)
UNEQUAL = Durations(f=1.25, i=1.5, w=0.75)  # exact in binary, so that bubbles are too
Formula = Callable[[int, int, Durations], float]


def bubble_1f1b(p: int, m: int, d: Durations) -> float:
    return (p - 1) * (d.f + d.i + d.w)


def bubble_zb_h1(p: int, m: int, d: Durations) -> float:
    """Qi et al.'s (p - 1)(F + I - W), where there are enough micro-batches to fill the gaps with."""
    return (p - 1) * (d.f + d.i) - (min(m, p) - 1) * d.w


def bubble_interleaved(p: int, m: int, d: Durations) -> float:
    """Of two chunks. Fewer micro-batches than ranks leave a rank idle between its chunks too."""
    return (p - 1 + max(p - m, 0)) * (d.f + d.i + d.w)


def held_interleaved(p: int, m: int) -> list[int]:
    group = -(-m // max(1, m // p))
    return [min(2 * m, group + 2 * (p - rank - 1) + 1) for rank in range(p)]


CASES: dict[str, tuple[int, Formula, Callable[[int, int], list[int]]]] = {
    "gpipe": (1, bubble_1f1b, lambda p, m: [m] * p),
    "1f1b": (1, bubble_1f1b, lambda p, m: [min(m, p - rank) for rank in range(p)]),
    "interleaved_1f1b": (2, bubble_interleaved, held_interleaved),
    "looped_bfs": (2, bubble_interleaved, lambda p, m: [2 * m] * p),
    "zb_h1": (1, bubble_zb_h1, lambda p, m: [min(m, p)] * p),
}
# Those whose formulas hold for F = I = W alone: the micro-batches of a rank that they need, and what is held.
ZERO_BUBBLE: dict[str, tuple[int, Callable[[int, int], list[int]]]] = {
    "interleaved_zero_bubble": (1, lambda p, m: held_interleaved(p, m)[:1] * p),
    "zb_v": (1, lambda p, m: [2 * min(m, p)] * p),
    "dualpipe_v": (2, lambda p, m: [min(2 * m, m + 1 + rank, 2 * p + 1) for rank in range(p)]),
}


@pytest.mark.parametrize("name", CASES)
def test_every_schedule_runs_and_waits_and_holds_as_its_formula(name: str) -> None:
    chunks, bubble, held = CASES[name]
    for p in RANKS:
        for m in MICRO_BATCHES:
            schedule = pp.SCHEDULES[name](p * chunks, m)
            _, timeline = pp.plan(schedule, p * chunks, m)
            assert timeline.bubble == bubble(p, m, EQUAL), (p, m)
            assert timeline.held == held(p, m), (p, m)
            again = pp.simulate_schedule(schedule, p * chunks, UNEQUAL)
            assert again.bubble == bubble(p, m, UNEQUAL), (p, m)


@pytest.mark.parametrize("name", ZERO_BUBBLE)
def test_two_stages_a_rank_without_a_bubble_but_the_first_forwards(name: str) -> None:
    enough, held = ZERO_BUBBLE[name]
    for p in RANKS:
        for m in MICRO_BATCHES:
            schedule = pp.SCHEDULES[name](2 * p, m)
            _, timeline = pp.plan(schedule, 2 * p, m)
            assert timeline.held == held(p, m), (p, m)
            full = m >= enough * p or p == 1
            assert timeline.bubble == p - 1 if full else timeline.bubble > p - 1, (p, m)
            if enough > 1 and not full:
                continue
            whole = pp.simulate_schedule(pp.interleaved_1f1b(2 * p, m), 2 * p, UNEQUAL)
            assert pp.simulate_schedule(schedule, 2 * p, UNEQUAL).bubble <= whole.bubble, (p, m)


def test_more_chunks_without_bubbles() -> None:
    for chunks in (1, 3, 4):
        _, timeline = pp.plan(pp.interleaved_zero_bubble(4 * chunks, 8, chunks), 4 * chunks, 8)
        assert timeline.bubble == 3


def test_weight_gradients_are_refused_a_schedule_that_locks() -> None:
    schedule = pp.one_f_one_b(2, 2)
    schedule[1].reverse()
    with pytest.raises(ScheduleError, match="deadlock: rank 0 at 0I0, rank 1 at 1I1"):
        pp.with_weight_gradients(schedule, 2, 2)


def test_dualpipe_v_splits_the_backwards_of_its_ends_alone() -> None:
    """Those of the first ranks wait longest: 2(p-1-r) + r+1 of a rank's 2m backwards are split."""
    for p in RANKS:
        for m in (2 * p, 32):
            for rank, actions in enumerate(pp.dualpipe_v(2 * p, m)):
                split = sum(a.kind is Kind.BACKWARD_INPUT for a in actions)
                assert split == 2 * (p - 1 - rank) + rank + 1
                assert sum(a.kind is Kind.FULL_BACKWARD for a in actions) == 2 * m - split
    assert str(pp.dualpipe_v(4, 4)[0]) == (
        "[0F0, 0F1, 0F2, 3F0, 3I0, 3W0, 3F1, 0F3, 3B1, 3F2, 0B0, 3B2, 3F3, 0B1, 3B3, 0I2, 0W2, 0I3, 0W3]"
    )


def test_a_v_has_its_last_stage_on_the_first_rank() -> None:
    assert [{a.stage for a in rank} for rank in pp.zb_v(6, 4)] == [{0, 5}, {1, 4}, {2, 3}]
    full, _ = pp.plan(pp.zb_v(4, 2), 4, 2)
    # what goes from stage 1 to stage 2 stays on the second rank
    assert {str(a) for a in full[1] if "SEND" in a.kind.value} == {
        "1SEND_B0",
        "1SEND_B1",
        "2SEND_F0",
        "2SEND_F1",
    }


def test_zero_bubble_is_a_third_of_1f1b_and_interleaving_halves_it() -> None:
    for p in range(2, 9):
        for m in range(p, 33):
            whole = pp.simulate_schedule(pp.one_f_one_b(p, m), p).bubble
            assert pp.simulate_schedule(pp.zb_h1(p, m), p).bubble <= 0.45 * whole
            half = Durations(0.5, 0.5, 0.5)  # a chunk is half of a rank's stage
            both = pp.simulate_schedule(pp.interleaved_1f1b(2 * p, m), 2 * p, half)
            assert both.bubble == whole / 2


def test_more_chunks_wait_less() -> None:
    for chunks in (1, 2, 4):
        part = Durations(1 / chunks, 1 / chunks, 1 / chunks)
        for m in (4, 8, 11):
            schedule = pp.interleaved_1f1b(4 * chunks, m, chunks)
            assert pp.plan(schedule, 4 * chunks, m, part)[1].bubble == 9 / chunks


def test_transfers_take_time_but_cannot_lock() -> None:
    for name, chunks in [*((name, case[0]) for name, case in CASES.items()), *((z, 2) for z in ZERO_BUBBLE)]:
        plain = pp.simulate_schedule(pp.SCHEDULES[name](4 * chunks, 8), 4 * chunks)
        slow = pp.plan(pp.SCHEDULES[name](4 * chunks, 8), 4 * chunks, 8, Durations(transfer=0.5))[1]
        assert slow.length > plain.length


def test_a_schedule_as_it_is_written_down() -> None:
    assert str(pp.one_f_one_b(2, 3)) == "[[0F0, 0F1, 0B0, 0F2, 0B1, 0B2], [1F0, 1B0, 1F1, 1B1, 1F2, 1B2]]"
    full, _ = pp.plan(pp.zb_h1(2, 2), 2, 2)
    assert str(full[0]) == ("[0F0, 0SEND_F0, 0F1, 0SEND_F1, 0RECV_B0, 0I0, 0W0, 0RECV_B1, 0I1, 0W1]")
    assert str(full[1]) == ("[1RECV_F0, 1F0, 1RECV_F1, 1I0, 1SEND_B0, 1F1, 1I1, 1SEND_B1, 1W0, 1W1]")


# ---- planted bugs ------------------------------------------------------------------------------------------


def swapped(actions: list[Action], a: Action, b: Action) -> None:
    i, j = actions.index(a), actions.index(b)
    actions[i], actions[j] = b, a


F, B, I, W = Kind.FORWARD, Kind.FULL_BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT
Plant = Callable[[list[list[Action]]], object]
COMPUTATIONS: dict[str, tuple[Plant, str]] = {
    "a backward before the forward that it needs": (
        lambda s: swapped(s[1], Action(F, 1, 2), Action(I, 1, 2)),
        "rank 1: 1I2 comes before 1F2",
    ),
    "a weight gradient before the input's": (
        lambda s: swapped(s[2], Action(I, 2, 1), Action(W, 2, 1)),
        "rank 2: 2W1 comes before 2I1",
    ),
    "a forward left out": (lambda s: s[3].remove(Action(F, 3, 5)), "3I5 comes before 3F5"),
    "a backward left out": (
        lambda s: (s[0].remove(Action(I, 0, 5)), s[0].remove(Action(W, 0, 5))),
        "stage 0, micro-batch 5: the gradient of the input is missing",
    ),
    "a weight gradient left out": (
        lambda s: s[1].remove(Action(W, 1, 0)),
        "stage 1, micro-batch 0: the gradient of the weights is missing",
    ),
    "a forward twice": (lambda s: s[0].append(Action(F, 0, 0)), "0F0 makes a forward a second time"),
    "a full backward beside its halves": (
        lambda s: s[0].append(Action(B, 0, 0)),
        "0B0 makes a gradient of the input a second time",
    ),
    "a stage without forwards": (
        lambda s: [s[3].remove(Action(F, 3, j)) for j in range(6)],
        "stage 3: no rank does its forward",
    ),
    "another rank's stage": (lambda s: s[0].append(Action(F, 1, 0)), "1F0 is of a stage that does not lie"),
    "a micro-batch too many": (lambda s: s[0].append(Action(F, 0, 6)), "0F6: there are 6 micro-batches"),
}


@pytest.mark.parametrize("what", COMPUTATIONS)
def test_a_wrong_computation_is_found(what: str) -> None:
    plant, text = COMPUTATIONS[what]
    schedule = pp.zb_h1(4, 6)
    pp.plan(schedule, 4, 6)
    plant(schedule)
    with pytest.raises(ScheduleError) as error:
        pp.plan(schedule, 4, 6)
    assert text in str(error.value)


def test_swapped_actions_that_lock_are_reported_with_what_each_rank_waits_for() -> None:
    schedule = pp.one_f_one_b(2, 4)
    swapped(schedule[0], Action(F, 0, 1), Action(B, 0, 0))  # fine: rank 1 needs the first forward alone
    pp.plan(schedule, 2, 4)
    swapped(schedule[1], Action(F, 1, 0), Action(F, 1, 2))
    swapped(schedule[1], Action(B, 1, 0), Action(B, 1, 2))
    with pytest.raises(ScheduleError, match="deadlock: rank 0 at 0B0, rank 1 at 1F2"):
        pp.plan(schedule, 2, 4)


TRANSFERS: dict[str, tuple[Plant, str]] = {
    "a receive left out": (lambda s: s[2].remove(Action(Kind.RECV_F, 2, 3)), "rank 2: 2RECV_F3 is missing"),
    "a send left out": (lambda s: s[2].remove(Action(Kind.SEND_B, 2, 3)), "rank 2: 2SEND_B3 is missing"),
    "a receive twice": (lambda s: s[2].append(Action(Kind.RECV_F, 2, 3)), "2RECV_F3 is there twice"),
    "a send to nobody": (lambda s: s[3].append(Action(Kind.SEND_F, 3, 0)), "3SEND_F0 is there twice, or for"),
    "a send from another rank": (
        lambda s: (s[1].remove(Action(Kind.SEND_F, 1, 0)), s[2].append(Action(Kind.SEND_F, 1, 0))),
        "rank 2: 1SEND_F0 is there twice, or for nothing",
    ),
    "a send before what it sends": (
        lambda s: swapped(s[0], Action(F, 0, 0), Action(Kind.SEND_F, 0, 0)),
        "rank 0: 0SEND_F0 comes before what it sends",
    ),
    "a receive after what needs it": (
        lambda s: swapped(s[1], Action(F, 1, 0), Action(Kind.RECV_F, 1, 0)),
        "rank 1: 1F0 comes before what it needs is received",
    ),
    "receives in another order than the sends": (
        lambda s: swapped(s[1], Action(Kind.RECV_F, 1, 0), Action(Kind.RECV_F, 1, 1)),
        "deadlock: rank 0 at 0SEND_F0, rank 1 at 1RECV_F1",
    ),
    "two ranks that both receive first": (
        lambda s: swapped(s[2], Action(Kind.SEND_F, 2, 1), Action(Kind.RECV_B, 2, 0)),
        "deadlock: .*rank 2 at 2RECV_B0, rank 3 at 3RECV_F1",
    ),
}


@pytest.mark.parametrize("what", TRANSFERS)
def test_a_wrong_transfer_is_found(what: str) -> None:
    plant, text = TRANSFERS[what]
    full, _ = pp.plan(pp.one_f_one_b(4, 6), 4, 6)
    pp.check_schedule(full, 4, 6)
    plant(full)
    with pytest.raises(ScheduleError, match=text):
        pp.check_schedule(full, 4, 6)


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="7 stages do not divide over ranks of 2 stages each; make stages"):
        pp.interleaved_1f1b(7, 4, 2)
    for make in pp.SCHEDULES.values():
        for stages, m in ((0, 4), (4, 0), (-1, 1)):
            with pytest.raises(ValueError, match="at least one stage, one micro-batch"):
                make(stages, m)
