"""Dynamic batching by simulation: the clock is a number, the model a cost curve."""

import asyncio
import random

import numpy as np
import pytest
from warptape.serve.batching import (
    AsyncBatcher,
    Batcher,
    BatchError,
    CostCurve,
    QueueFullError,
    Request,
    joined,
    split,
)
from warptape.serve.config import DynamicBatching
from warptape.serve.workers import DeadlineError


def batcher(most=8, instances=1, **settings):
    return Batcher(most, DynamicBatching(**settings), instances)


def rows_of(decision):
    return None if decision.batch is None else [r.rows for r in decision.batch.requests]


def test_without_delay_what_is_there_goes_at_once():
    b = batcher()
    for n in (1, 2, 3):
        b.add(Request(n, "k"))
    assert rows_of(b.next(0.0)) == [1, 2, 3]
    b.add(Request(1, "k"))
    assert rows_of(b.next(0.0)) is None  # the only instance is busy
    assert b.running == 1 and b.waiting == 1


def test_delay_waits_for_others_and_no_longer():
    b = batcher(max_queue_delay_microseconds=1000)
    b.add(Request(1, "k", arrival=5.0))
    decision = b.next(5.0)
    assert decision.batch is None and decision.wake == pytest.approx(5.001)
    b.add(Request(7, "k", arrival=5.0005))
    assert rows_of(b.next(5.0005)) == [1, 7]  # full: it waits no longer
    b = batcher(max_queue_delay_microseconds=1000)
    b.add(Request(1, "k", arrival=5.0))
    assert rows_of(b.next(5.0011)) == [1]


def test_preferred_sizes():
    b = batcher(preferred_batch_size=(2, 4), max_queue_delay_microseconds=1000)
    for _ in range(5):
        b.add(Request(1, "k", arrival=0.0))
    assert rows_of(b.next(0.0)) == [1, 1, 1, 1]
    b.done(b_of(b), 0.01)
    assert rows_of(b.next(0.0)) is None  # one is no preferred size
    b.add(Request(1, "k", arrival=0.0))
    assert rows_of(b.next(0.0)) == [1, 1]


def b_of(b):
    """A batch that stands for the one that runs."""
    from warptape.serve.batching import Batch

    return Batch([Request(4, "k")])


def test_other_shapes_go_into_other_batches():
    b = batcher(instances=2)
    for key in "abab":
        b.add(Request(1, key))
    first, second = b.next(0.0), b.next(0.0)
    assert [{r.key for r in d.batch.requests} for d in (first, second)] == [{"a"}, {"b"}]


def test_priorities_overtake_and_default():
    b = batcher(most=1, priority_levels=3, default_priority_level=2)
    for asked in (0, 3, 1, 9):
        b.add(Request(1, "k", asked, b.priority_of(asked)))
    order = []
    for _ in range(4):
        d = b.next(0.0)
        order.append(d.batch.requests[0].payload)
        b.done(d.batch, 0.01)
    assert order == [1, 0, 9, 3]


def test_deadlines_end_before_computing():
    b = batcher(most=1)
    b.add(Request(1, "k"))
    running = b.next(0.0).batch
    late, fine = Request(1, "k", deadline=1.0), Request(1, "k", deadline=9.0)
    b.add(late)
    b.add(fine)
    decision = b.next(0.5)
    assert decision.batch is None and decision.wake == 1.0
    b.done(running, 2.0)
    decision = b.next(2.0)
    assert decision.expired == [late] and decision.batch.requests == [fine]


def test_queue_limit():
    b = batcher(max_queue_size=2)
    b.add(Request(1, "k"))
    b.add(Request(1, "k"))
    with pytest.raises(QueueFullError, match="2 requests wait"):
        b.add(Request(1, "k"))


def test_cost_curve_grows_and_extrapolates():
    curve = CostCurve(weight=1.0)
    for size, seconds in ((1, 0.010), (4, 0.020), (8, 0.018)):
        curve.add(size, seconds)
    assert curve.seconds(1) == 0.010 and curve.seconds(8) == 0.020
    assert curve.seconds(2) == pytest.approx(0.010 + 0.010 / 3)
    assert curve.seconds(16) == pytest.approx(0.040)


def simulate(b, arrivals, cost):
    """Latencies of requests at the times of `arrivals`, by a model that takes cost(rows) seconds."""
    now, waiting, ends, latencies = 0.0, sorted(arrivals), [], []
    wake = None
    while waiting or ends or b.waiting:
        times = [t for t in (waiting[:1] + [e[0] for e in ends] + ([wake] if wake else [])) if t >= now]
        now = min(times)
        while waiting and waiting[0] <= now:
            b.add(Request(1, "k", arrival=waiting.pop(0)))
        for end in [e for e in ends if e[0] <= now]:
            ends.remove(end)
            b.done(end[1], end[2])
            latencies += [now - r.arrival for r in end[1].requests]
        while True:
            decision = b.next(now)
            wake = decision.wake
            if decision.batch is None:
                break
            seconds = cost(decision.batch.rows)
            ends.append((now + seconds, decision.batch, seconds))
    return latencies


def poisson(rate, count):
    draw, at, arrivals = random.Random(0), 0.0, []
    for _ in range(count):
        at += draw.expovariate(rate)
        arrivals.append(at)
    return arrivals


def cost(rows):
    return 0.004 + 0.002 * rows


@pytest.mark.parametrize("target", [25.0, 60.0])
def test_latency_target_is_met_where_single_requests_would_queue(target):
    """A model of 4 ms and 2 ms a row, which does 167 requests a second one by one, under 300."""
    b = batcher(most=64, latency_target_ms=target, max_queue_delay_microseconds=2000)
    latencies = sorted(simulate(b, poisson(300.0, 4000), cost))
    assert len(latencies) == 4000
    assert latencies[2000] <= target / 1e3 and latencies[int(0.9 * 4000)] <= 1.5 * target / 1e3
    alone = sorted(simulate(batcher(most=1), poisson(300.0, 4000), cost))
    assert alone[2000] > 1.0


def test_batches_of_the_target_are_smaller_than_they_could_be():
    """A burst that can be answered in time by batches of four is not answered by one of sixteen."""
    b = batcher(most=64, latency_target_ms=25.0)
    for size in (1, 2, 4, 8, 16, 32):
        b.curve.add(size, cost(size))
    for _ in range(6):
        b.add(Request(1, "k"))
    assert b.next(0.0).batch.rows == 4  # 2 * cost(4) = 24 ms
    crowd = batcher(most=64, latency_target_ms=25.0)
    crowd.curve = b.curve
    for _ in range(40):
        crowd.add(Request(1, "k"))
    assert crowd.next(0.0).batch.rows == 40  # ten batches of four would take 120 ms
    fresh = batcher(most=64, latency_target_ms=1000.0)
    for _ in range(40):
        fresh.add(Request(1, "k"))
    assert fresh.next(0.0).batch.rows == 1  # nothing was measured


def test_random_traffic_is_split_exactly_and_loses_nothing():
    draw = random.Random(1)

    async def run():
        async def model(inputs, outputs):
            await asyncio.sleep(0.001)
            if (inputs["x"] < 0).any():
                raise ValueError("negative")
            return {"y": inputs["x"] * 2}

        b = AsyncBatcher(Batcher(8, DynamicBatching(max_queue_delay_microseconds=500), 2), model)

        async def one(i):
            await asyncio.sleep(draw.random() * 0.05)
            rows, width = draw.randint(1, 5), draw.choice((2, 3))
            x = np.full((rows, width), i, np.float32)
            got = await b.infer({"x": x}, None, rows=rows)
            assert np.array_equal(got["y"], 2 * x)

        await asyncio.gather(*map(one, range(300)))
        assert b.core.waiting == 0 and b.core.running == 0
        return b

    asyncio.run(run())


def test_an_error_reaches_the_requests_of_its_batch_only():
    async def run():
        async def model(inputs, outputs):
            await asyncio.sleep(0)
            if (inputs["x"] < 0).any():
                raise ValueError("negative")
            return inputs

        b = AsyncBatcher(Batcher(2, DynamicBatching()), model)
        values = (1, -1, 2, 3)
        calls = [b.infer({"x": np.full((1, 1), v)}, None, rows=1) for v in values]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(r, ValueError) for r in results] == [True, True, False, False]

    asyncio.run(run())


def test_a_request_that_waits_too_long_is_never_computed():
    async def run():
        computed, go = [], asyncio.Event()

        async def model(inputs, outputs):
            computed.append(inputs["x"].item())
            await go.wait()
            return inputs

        b = AsyncBatcher(Batcher(1, DynamicBatching()), model)
        loop = asyncio.get_running_loop()
        first = asyncio.ensure_future(b.infer({"x": np.full((1, 1), 1)}, None, rows=1))
        await asyncio.sleep(0)
        with pytest.raises(DeadlineError):
            await b.infer({"x": np.full((1, 1), 2)}, None, rows=1, deadline=loop.time() + 0.02)
        go.set()
        await first
        assert computed == [1]

    asyncio.run(run())


def test_a_model_that_forgets_rows():
    with pytest.raises(BatchError, match=r"output y has shape \[2\] for a batch of 3"):
        split({"y": np.zeros(2)}, [1, 2])
    parts = split({"y": np.arange(3)}, [1, 2])
    assert [p["y"].tolist() for p in parts] == [[0], [1, 2]]
    assert joined(parts)["y"].tolist() == [0, 1, 2]
