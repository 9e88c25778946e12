"""StepTimer and straggler_report: by numbers, and over processes of which one sleeps."""

from __future__ import annotations

import time

import pytest
import warptape.distributed as dist
from launched import launch, lines
from warptape.distributed import stragglers
from warptape.distributed.stragglers import StepTimer, straggler_report

SCRIPT = """
import json, time
import warptape as wt
import warptape.distributed as dist
from warptape import nn
from warptape.nn.parallel import DistributedDataParallel

dist.init_process_group()
rank = dist.get_rank()
model = DistributedDataParallel(nn.Linear(64, 64))
timer = dist.StepTimer()
work = None
for step in range(5):
    with timer.step():
        with timer.section("data"):
            time.sleep(0.3 if rank == 1 else 0.0)
        loss = model(wt.ones(8, 64)).sum()
        with timer.section("backward"):
            loss.backward()  # in which DDP waits for the slow
        if step % 2:
            work = dist.all_reduce(wt.ones(4), async_op=True)
            work.wait()
        dist.barrier()
report = dist.straggler_report(timer, factor=3)
row = {"rank": rank, "stragglers": report.stragglers, "slow": {n: t.slow for n, t in report.sections.items()}}
row |= {"by_rank": {n: t.by_rank for n, t in report.sections.items()}, "table": report.table()}
pair = dist.new_group([0, 2])
if rank != 1:
    row["pair"] = list(dist.straggler_report(timer, group=pair, factor=3).sections["data"].by_rank)
print(json.dumps(row))
dist.destroy_process_group()
"""


def test_the_rank_that_sleeps_is_found(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    code, out, err = launch("--nproc-per-node", 3, script)
    assert code == 0, err
    rows = sorted(lines(out), key=lambda row: row["rank"])
    assert [row["rank"] for row in rows] == [0, 1, 2]
    for row in rows:  # the same on every rank
        assert row["slow"]["data"] == row["slow"]["compute"] == [1] and row["slow"]["wait"] == []
        assert 1 in row["stragglers"] and row["by_rank"] == rows[0]["by_rank"]
        assert row["table"] == rows[0]["table"] and "compute" in row["table"]
    times = rows[0]["by_rank"]
    assert times["compute"]["1"] > 0.3 and times["data"]["1"] > 0.3
    # The others stand in calls meanwhile: in DDP's reduction, for a result, at the barrier.
    assert min(times["wait"]["0"], times["wait"]["2"]) > 0.2 > times["wait"]["1"]
    assert max(times["compute"]["0"], times["compute"]["2"]) < 0.2
    assert max(times["backward"].values()) < 0.2  # without the wait in it
    assert min(times["step"].values()) > 0.3
    assert rows[0]["pair"] == rows[2]["pair"] == [0, 2]


def run_ranks(times, **options):
    """The report of each rank, of seconds by section."""
    return dist.simulate(len(times), lambda: straggler_report(times[dist.get_rank()], **options))


def test_statistics():
    reports = run_ranks(
        [
            {"compute": [1.0, 1.0, 9.0], "wait": [8.0]},
            {"compute": [4.0, 2.0, 6.0], "wait": [0.5]},
            {"compute": [1.2, 1.1, 1.0], "wait": [0.5]},
            {"compute": [1.3, 1.3], "saving": [5.0], "wait": [0.5]},
        ],
        factor=2,
    )
    assert all(report == reports[0] for report in reports)
    compute, saving, wait = (reports[0].sections[name] for name in ("compute", "saving", "wait"))
    assert compute.by_rank == {0: 1.0, 1: 4.0, 2: 1.1, 3: 1.3}
    assert compute.median == 1.1  # the smaller of 1.1 and 1.3
    assert compute.max == 9.0 and compute.p95 == 9.0 and compute.slow == [1]
    assert saving.by_rank == {3: 5.0} and saving.slow == [] and wait.slow == []
    assert reports[0].stragglers == [1]
    rows = [line.split() for line in str(reports[0]).splitlines()]
    assert rows[0] == ["section", "median", "p95", "max", "slow", "ranks"]
    assert ["compute", "1100.000", "9000.000", "9000.000", "1", "(3.6x)"] in rows
    assert ["saving", "5000.000", "5000.000", "5000.000", "-"] in rows
    # Of two ranks the fast one is the measure.
    assert run_ranks([{"a": [1.0]}, {"a": [1.6]}])[0].sections["a"].slow == [1]
    assert run_ranks([{"a": [1.0]}, {"a": [1.4]}])[0].sections["a"].slow == []
    spread = straggler_report({"a": [float(i) for i in range(100)]}).sections["a"]
    assert (spread.p95, spread.max, spread.median) == (94.0, 99.0, 49.5)


def test_timer_takes_waits_apart(monkeypatch):
    clock, waited = iter([0.0, 1.0, 4.0, 5.0, 7.0, 10.0]), iter([0.0, 0.0, 2.0, 2.0, 2.5, 2.5])
    timer = StepTimer()
    monkeypatch.setattr(timer, "_now", lambda: (next(clock), next(waited)))
    with timer.step():
        with timer.section("forward"):
            pass
        with timer.section("forward"):
            pass
    assert timer.seconds == {"forward": [1.0 + 1.5], "step": [10.0], "wait": [2.5], "compute": [7.5]}


def test_a_step_that_raises_is_not_recorded():
    timer = StepTimer()

    def fail():
        with timer.step(), timer.section("forward"):
            raise KeyError("planted")

    with pytest.raises(KeyError):
        fail()
    assert timer.seconds == {}
    calls = []
    timer = StepTimer(synchronize=lambda: calls.append(time.perf_counter()))
    with timer.step(), timer.section("forward"):
        pass
    assert len(calls) == 4 and timer.seconds["wait"] == [0.0]


def test_what_is_refused():
    timer = StepTimer()
    with pytest.raises(RuntimeError, match="there is no step"), timer.section("forward"):
        pass
    with timer.step():
        with pytest.raises(RuntimeError, match="a step is being timed"), timer.step():
            pass
        with pytest.raises(ValueError, match="'wait' is timed by step"), timer.section("wait"):
            pass
    with pytest.raises(ValueError, match=r"factor of at least 1, got 0\.5"):
        straggler_report(timer, factor=0.5)
    with pytest.raises(ValueError, match="no rank has recorded"):
        straggler_report(stragglers.StepTimer())
