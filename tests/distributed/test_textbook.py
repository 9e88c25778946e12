"""The textbook all-reduces: their sums against dist.all_reduce, their counts against the cost model."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import pytest
import warptape as wt
from warptape import distributed as dist
from warptape.distributed.algorithms.textbook import ALGORITHMS, Move, Trace, chunk, holdings, predict

ROOT = Path(__file__).resolve().parents[2]
EACH = pytest.mark.parametrize("name", ALGORITHMS)
RANKS = pytest.mark.parametrize("n", range(1, 9))


def run(name, n, numel=24, dtype=wt.float64):
    """(traces by rank, what each rank had after each step) for the values 1 << rank."""
    seen = [[] for _ in range(n)]

    def body():
        rank = dist.get_rank()
        x = wt.full((numel,), 1 << rank, dtype=dtype)
        return ALGORITHMS[name](x, watch=lambda step, flat: seen[rank].append((step, flat.long().tolist())))

    return dist.simulate(n, body), seen


@EACH
@RANKS
def test_sums_as_all_reduce(name, n):
    shapes = [(), (0,), (1,), (7,), (n,), (3, 5, 4), (100_003,)]  # fewer than ranks, uneven, many packets

    def body():
        g = wt.Generator().manual_seed(dist.get_rank())
        for shape in shapes:
            for x in (wt.randn(shape, generator=g), wt.randint(-99, 99, shape, generator=g)):
                expected = x.clone()
                dist.all_reduce(expected)
                trace = ALGORITHMS[name](x)
                assert x.shape == expected.shape and x.allclose(expected, rtol=1e-5, atol=1e-5)
                assert (trace.rank, trace.size) == (dist.get_rank(), n)
        return x

    results = dist.simulate(n, body)
    assert all(result.equal(results[0]) for result in results)


@EACH
def test_works_on_views_and_in_groups(name):
    def body():
        pair = dist.new_group([1, 3])
        x = wt.arange(12.0).reshape(3, 4)
        if dist.get_rank() in (1, 3):
            trace = ALGORITHMS[name](x.t()[1:3], group=pair)
            assert (trace.rank, trace.size) == (dist.get_rank() // 2, 2)
        return x.tolist()

    plain = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    twice = [[0, 2, 4, 3], [4, 10, 12, 7], [8, 18, 20, 11]]
    assert dist.simulate(4, body) == [plain, twice, plain, twice]


@EACH
@RANKS
def test_counts_are_those_of_the_cost_model(name, n):
    numel = 840  # of which 1 to 8 are divisors
    traces, _ = run(name, n, numel)
    cost = predict(name, n, 8 * numel)
    assert {trace.steps for trace in traces} == {cost.steps}
    longest = [0] * (cost.steps + 1)  # bytes of the longest message in each step
    added = list(longest)
    for trace in traces:
        for move in trace.sent:
            longest[move.step] = max(longest[move.step], move.bytes)
            if move.adds:
                added[move.step] = longest[move.step]
        for moves in (trace.sent, trace.received):  # one at a time each way, as the model has it
            assert len({move.step for move in moves}) == len(moves)
    assert sum(longest) == cost.bytes and sum(added) == cost.added
    assert max(trace.bytes_sent for trace in traces) == cost.busiest
    assert sum(t.bytes_sent for t in traces) == sum(t.bytes_received for t in traces)


@RANKS
def test_the_ring_sends_the_same_over_every_link(n):
    """2(n - 1)/n of the data, to the next rank alone; with uneven chunks, up to one element a step off."""
    for numel in (840, 17):
        traces, _ = run("ring", n, numel)
        for trace in traces:
            exact = 8 * numel * 2 * (n - 1) / n
            links = {(trace.rank + 1) % n: trace.bytes_sent} if n > 1 else {}
            assert trace.bytes_by_link == links
            assert abs(trace.bytes_sent - exact) <= (0 if numel == 840 else 8 * 2 * (n - 1))
        assert sum(trace.bytes_sent for trace in traces) == 8 * numel * 2 * (n - 1)


def test_the_naive_one_goes_through_rank_0_and_doubling_sends_all_each_step():
    traces, _ = run("naive", 5, 10)
    assert [trace.bytes_sent for trace in traces] == [4 * 80, 80, 80, 80, 80]
    assert traces[0].bytes_by_link == {1: 80, 2: 80, 3: 80, 4: 80}
    traces, _ = run("recursive doubling", 8, 10)
    assert [trace.bytes_by_link for trace in traces][5] == {4: 80, 7: 80, 1: 80}
    traces, _ = run("recursive doubling", 6, 10)  # 0 and 2 sit out, 1 and 3 stand for two
    assert [trace.bytes_sent // 80 for trace in traces] == [1, 3, 1, 3, 2, 2]


def test_the_model_says_which_to_take_when():
    """Small: as few steps as can be. Large: as few bytes. By hand for n = 8, alpha = 1, beta = 1e-3."""
    at = lambda nbytes: {name: predict(name, 8, nbytes).seconds(1.0, 1e-3) for name in ALGORITHMS}
    assert at(100) == pytest.approx({"naive": 15.4, "ring": 14.175, "recursive doubling": 3.3})
    assert at(1e6) == pytest.approx({"naive": 14014.0, "ring": 1764.0, "recursive doubling": 3003.0})
    assert predict("ring", 4, 100).seconds(0, 0, 1.0) == 75
    with pytest.raises(ValueError, match="expected one of naive, ring, recursive doubling, got 'tree'"):
        predict("tree", 2, 1)


@EACH
@RANKS
def test_holdings_follow_from_the_traces(name, n):
    """The values 1 << rank add up to the bits of the ranks that are in a sum."""
    numel = 11
    traces, seen = run(name, n, numel)
    expected = holdings(traces, numel)
    for rank in range(n):
        assert [step for step, _ in seen[rank]] == list(range(traces[0].steps + 1))
        assert [values for _, values in seen[rank]] == [step[rank] for step in expected]
    assert expected[-1] == [[(1 << n) - 1] * numel] * n


def test_holdings_refuse_what_cannot_be():
    move = Move(1, 0, 1, (0, 1), 8, True)
    again = Move(2, 0, 1, (0, 1), 8, True)
    with pytest.raises(ValueError, match="is not what was received"):
        holdings([Trace(0, 2, 1, sent=[move]), Trace(1, 2, 1)], 1)
    with pytest.raises(ValueError, match="step 2 adds a part twice on rank 1"):
        holdings([Trace(0, 2, 2, sent=[move, again]), Trace(1, 2, 2, received=[move, again])], 1)


def test_chunks_cover_everything_evenly():
    for numel in (0, 1, 7, 64):
        for n in range(1, 9):
            spans = [chunk(i, numel, n) for i in range(n)]
            assert [i for span in spans for i in range(*span)] == list(range(numel))
            assert max(b - a for a, b in spans) - min(b - a for a, b in spans) <= 1


def figure():
    path = ROOT / "docs/figures/collectives.py"
    spec = importlib.util.spec_from_file_location("collectives_figure", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_picture_shows_what_the_traces_say():
    """Every stripe that is filled is a part that the values themselves hold, and the file is that picture."""
    module = figure()
    drawn = module.panels()
    assert [(p.name, p.ranks) for p in drawn] == [
        ("naive", 4),
        ("ring", 4),
        ("recursive doubling", 4),
        ("recursive doubling", 6),
    ]
    for panel in drawn:
        _, seen = run(panel.name, panel.ranks, panel.chunks)
        values = [[seen[rank][step][1] for rank in range(panel.ranks)] for step in range(len(panel.held))]
        assert panel.held == values
    text = module.draw(drawn)
    boxes = [line.count("z") for line in text.splitlines() if 'class="part"' in line]
    assert sum(boxes) == sum(
        bits.bit_count() for p in drawn for step in p.held for row in step for bits in row
    )
    assert text == (ROOT / "docs/figures/collectives.svg").read_text()
    assert math.isclose(float(text.split('width="')[1].split('"')[0]), module.WIDTH)


def test_the_page_shows_what_comes_out(capsys):
    """Its program runs and prints what the comments say; its table is the model's."""
    page = (ROOT / "docs/explanation/collectives.md").read_text()
    exec(page.split("```python\n")[1].split("```")[0], {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("6 {1: 48}") and lines[0].startswith("[6.0, ")
    assert lines[4] in page and "6 {1: 48} on rank 0" in page
    units = {"us": 1e-6, "ms": 1e-3}
    for label, nbytes in {"1 kB": 1e3, "1 MB": 1e6, "100 MB": 1e8}.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| {label} |"))
        told = [cell.strip(" *").split() for cell in row.split("|")[2:-1]]
        for (value, unit), name in zip(told, ALGORITHMS):
            assert predict(name, 8, nbytes).seconds(20e-6, 1e-10) == pytest.approx(
                float(value) * units[unit], rel=0.02
            )
