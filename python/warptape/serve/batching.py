"""Which requests of a one-call model are computed together: a pure core, told the time, and its driver.

add ──▶ queue of each priority ──▶ next(now): a batch, or when ──▶ worker ──▶ done(batch, seconds)
                                      ▲                                            │
                                      └── the size that latency_target_ms allows ◀─┘ CostCurve
"""

from __future__ import annotations

import asyncio
import itertools
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .config import DynamicBatching
from .workers import DeadlineError

Arrays = dict[str, np.ndarray]


class QueueFullError(RuntimeError):
    """As many requests wait as may: the caller should come again later."""


class BatchError(RuntimeError):
    """A model that was given a batch did not answer with one row for each."""


class CostCurve:
    """Seconds that a batch takes by its size, from those measured; grows with the size.

    Args:
        weight: of a new measurement in the mean.
    """

    def __init__(self, weight: float = 0.2) -> None:
        self._weight = weight
        self._measured: dict[int, float] = {}
        self._curve: list[tuple[int, float]] = []

    def add(self, size: int, seconds: float) -> None:
        """A measurement: the mean moves towards it.

        Args:
            size: rows.
            seconds: of the batch.
        """
        old = self._measured.get(size)
        self._measured[size] = seconds if old is None else old + self._weight * (seconds - old)
        best, curve = 0.0, []
        for n in sorted(self._measured):
            best = max(best, self._measured[n])
            curve.append((n, best))
        self._curve = curve

    @property
    def largest(self) -> int:
        """The largest size that was measured, or 0."""
        return self._curve[-1][0] if self._curve else 0

    def points(self) -> list[tuple[int, float]]:
        """The curve: sizes and seconds."""
        return list(self._curve)

    def seconds(self, size: int) -> float:
        """Of a size: between two measured ones on the line, beyond the last in proportion. 0 if unknown.

        Args:
            size: rows.
        """
        curve = self._curve
        if not curve:
            return 0.0
        at = bisect_left(curve, (size, 0.0))
        if at == len(curve):
            return curve[-1][1] * size / curve[-1][0]
        if curve[at][0] == size or at == 0:
            return curve[at][1]
        (n0, t0), (n1, t1) = curve[at - 1], curve[at]
        return t0 + (t1 - t0) * (size - n0) / (n1 - n0)


@dataclass(eq=False)
class Request:
    """What waits.

    Attributes:
        rows: its size along the first dim.
        key: only requests of one key are computed together.
        deadline: by the batcher's clock; None: any time.
    """

    rows: int
    key: Hashable
    payload: Any = None
    priority: int = 0
    arrival: float = 0.0
    deadline: float | None = None


@dataclass(eq=False)
class Batch:
    """Requests to be computed by one call.

    Args:
        requests: in order.
        started: when it began.
    """

    requests: list[Request]
    started: float = 0.0

    @property
    def rows(self) -> int:
        """Along the first dim."""
        return sum(r.rows for r in self.requests)


@dataclass
class Decision:
    """What to do now: compute the batch, answer those whose time is over, ask again at `wake`.

    Args:
        batch: None for nothing now.
        expired: whose time is over.
        wake: None for never.
    """

    batch: Batch | None = None
    expired: list[Request] = field(default_factory=list)
    wake: float | None = None


class Batcher:
    """The core: no clock, no threads.

    Args:
        most: rows of a batch, max_batch_size.
        settings: see DynamicBatching.
        instances: batches that may be computed at once.
    """

    def __init__(self, most: int, settings: DynamicBatching, instances: int = 1) -> None:
        self.most, self.settings, self.instances = most, settings, instances
        self.curve = CostCurve()
        self.running = 0
        self._queues: dict[int, deque[Request]] = {}
        self.waiting = 0

    def priority_of(self, asked: int) -> int:
        """The level of a request: what it asks for where there is such a level, else the default.

        Args:
            asked: by the client; 0 for none.
        """
        s = self.settings
        return asked if 1 <= asked <= s.priority_levels else s.default_priority_level

    def add(self, request: Request) -> None:
        """Raises: QueueFullError.

        Args:
            request: waits from now on.
        """
        limit = self.settings.max_queue_size
        if limit and self.waiting >= limit:
            raise QueueFullError(f"{self.waiting} requests wait, as many as max_queue_size lets")
        self._queues.setdefault(request.priority, deque()).append(request)
        self.waiting += 1

    def remove(self, request: Request) -> None:
        """Of a caller that went away; one that is being computed is computed.

        Args:
            request: that was added.
        """
        queue = self._queues.get(request.priority)
        if queue and request in queue:
            queue.remove(request)
            self.waiting -= 1

    def size_limit(self, now: float) -> int:
        """Rows that a batch may have: a request that comes just after a batch began waits for that one and
        is answered with the next, so two of them must fit into the target. Where those that wait already
        would be late by such batches, only larger ones, which do more a second, bring the target back. A
        size is tried only after half of it was measured."""
        target = self.settings.latency_target_ms
        if target is None:
            return self.most
        low, tried = 1, min(self.most, max(1, 2 * self.curve.largest))
        high = tried
        while low < high:  # the curve grows, so the answer can be halved towards
            middle = (low + high + 1) // 2
            if 2 * self.curve.seconds(middle) <= target / 1e3:
                low = middle
            else:
                high = middle - 1
        waiting = [r for queue in self._queues.values() for r in queue]
        if waiting:
            needed = -(-sum(r.rows for r in waiting) // low) * self.curve.seconds(low) / self.instances
            if now + needed > min(r.arrival for r in waiting) + target / 1e3:
                return tried
        return low

    def delay(self, rows: int) -> float:
        """Seconds that the first of a batch may wait for others, so that it still meets the target.

        Args:
            rows: of the batch.
        """
        delay = self.settings.max_queue_delay_microseconds / 1e6
        target = self.settings.latency_target_ms
        return delay if target is None else max(0.0, min(delay, target / 1e3 - 2 * self.curve.seconds(rows)))

    def _expire(self, now: float) -> list[Request]:
        gone = []
        for queue in self._queues.values():
            if any(r.deadline is not None and r.deadline <= now for r in queue):
                gone += [r for r in queue if r.deadline is not None and r.deadline <= now]
                kept = [r for r in queue if r.deadline is None or r.deadline > now]
                queue.clear()
                queue.extend(kept)
        self.waiting -= len(gone)
        return gone

    def _ordered(self) -> list[deque[Request]]:
        return [self._queues[p] for p in sorted(self._queues) if self._queues[p]]

    def _members(self, limit: int) -> list[Request]:
        """The first request, and those of its key that fit with it, in order."""
        first: Request | None = None
        members: list[Request] = []
        rows = 0
        for request in itertools.chain.from_iterable(self._ordered()):
            if first is None:
                first = request
            if request.key != first.key:
                continue
            if members and rows + request.rows > limit:
                break
            members.append(request)
            rows += request.rows
            if rows >= limit:
                break
        return members

    def _preferred(self, members: list[Request]) -> list[Request] | None:
        """The beginning of `members` that has the largest preferred size, where one can be made."""
        sizes = list(itertools.accumulate(r.rows for r in members))
        for size in reversed(self.settings.preferred_batch_size):
            if size in sizes:
                return members[: sizes.index(size) + 1]
        return None

    def next(self, now: float) -> Decision:
        """The decision at a time. A batch in it counts as running until `done`.

        Args:
            now: of a clock that never goes back.
        """
        decision = Decision(expired=self._expire(now))
        if not self.waiting:
            return decision
        deadlines = [r.deadline for q in self._queues.values() for r in q if r.deadline is not None]
        decision.wake = min(deadlines, default=None)
        if self.running >= self.instances:
            return decision
        limit = self.size_limit(now)
        members = self._members(limit)
        rows = sum(r.rows for r in members)
        preferred = self._preferred(members)
        if rows < limit and preferred is None:
            until = members[0].arrival + self.delay(rows)
            if now < until:
                decision.wake = until if decision.wake is None else min(until, decision.wake)
                return decision
        chosen = preferred or members
        for request in chosen:
            self._queues[request.priority].remove(request)
        self.waiting -= len(chosen)
        self.running += 1
        decision.batch = Batch(chosen, now)
        return decision

    def done(self, batch: Batch, seconds: float | None) -> None:
        """After a batch was computed; None where it failed, which says nothing of its cost.

        Args:
            batch: of `next`.
            seconds: of computing.
        """
        self.running -= 1
        if seconds is not None:
            self.curve.add(batch.rows, seconds)


def joined(parts: list[Arrays]) -> Arrays:
    """Inputs of several requests as one batch, row behind row.

    Args:
        parts: arrays by name, of equal shapes behind the first dim.
    """
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def split(outputs: Arrays, rows: list[int]) -> list[Arrays]:
    """The rows of each request. Raises: BatchError for outputs of another number of rows.

    Args:
        outputs: arrays by name.
        rows: of each request.
    """
    total = sum(rows)
    for name, array in outputs.items():
        if array.ndim < 1 or array.shape[0] != total:
            raise BatchError(
                f"output {name} has shape {list(array.shape)} for a batch of {total}: a model with a "
                "max_batch_size must give one row for each"
            )
    ends = list(itertools.accumulate(rows))
    return [{n: a[e - r : e] for n, a in outputs.items()} for r, e in zip(rows, ends)]


Run = Callable[[Arrays, tuple[str, ...] | None], Awaitable[Arrays]]


class AsyncBatcher:
    """Runs a Batcher by the clock of the running event loop's thread.

    Args:
        core: what decides.
        run: computes a batch.
        observe: is told of each batch: rows, seconds of waiting of each request, seconds of computing.
    """

    def __init__(
        self, core: Batcher, run: Run, observe: Callable[[int, list[float], float], None] | None = None
    ) -> None:
        self.core, self._run, self._observe = core, run, observe
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked = False

    async def infer(
        self,
        inputs: Arrays,
        outputs: tuple[str, ...] | None,
        *,
        rows: int,
        priority: int = 0,
        deadline: float | None = None,
    ) -> Arrays:
        """The answer to a request.

        Raises: QueueFullError, DeadlineError, BatchError, what the worker raised for its batch.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Arrays] = loop.create_future()
        key = (outputs, tuple((n, a.dtype.str, a.shape[1:]) for n, a in sorted(inputs.items())))
        now = time.monotonic()
        request = Request(
            rows, key, (inputs, outputs, future), self.core.priority_of(priority), now, deadline
        )
        self.core.add(request)
        if not self._asked:  # requests that are read from sockets in one turn of the loop come together
            self._asked = True
            loop.call_soon(self._ask)
        try:
            return await future
        except asyncio.CancelledError:
            self.core.remove(request)
            raise

    def _ask(self) -> None:
        self._asked = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while True:
            now = time.monotonic()
            decision = self.core.next(now)
            for request in decision.expired:
                future = request.payload[2]
                if not future.done():
                    future.set_exception(DeadlineError("the request's time was over before its turn came"))
            if decision.batch is None:
                break
            task = loop.create_task(self._compute(decision.batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if decision.wake is not None:
            self._timer = loop.call_later(max(0.0, decision.wake - now), self._ask)

    async def _compute(self, batch: Batch) -> None:
        futures = [r.payload[2] for r in batch.requests]
        seconds: float | None = None
        try:
            inputs = joined([r.payload[0] for r in batch.requests])
            began = time.monotonic()
            outputs = await self._run(inputs, batch.requests[0].payload[1])
            seconds = time.monotonic() - began
            if self._observe is not None:
                self._observe(batch.rows, [batch.started - r.arrival for r in batch.requests], seconds)
            for future, part in zip(futures, split(outputs, [r.rows for r in batch.requests])):
                if not future.done():
                    future.set_result(part)
        except BaseException as error:
            for future in futures:
                if not future.done():
                    future.set_exception(
                        error if isinstance(error, Exception) else RuntimeError("the server ends")
                    )
            if not isinstance(error, Exception):
                raise
        finally:
            self.core.done(batch, seconds)
            self._ask()
