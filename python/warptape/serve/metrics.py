"""What a server counts, per model and version: for Prometheus, KServe's statistics and the status page.

Prometheus' objects lock; each is made once and kept, so that a request costs a few of its calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
LABELS = ("model", "version")
PREFIX = "warptape_"
# Counts of an engine's statistics: key, name, what it is.
ENGINE_COUNTS = {
    "preemptions": "requests that gave their pages back and computed them again",
    "prompt_tokens": "tokens of prompts",
    "cached_prompt_tokens": "tokens of prompts that were found in the cache",
    "generated_tokens": "tokens that were generated",
    "proposed_tokens": "tokens that speculation proposed",
    "accepted_tokens": "tokens of these that were accepted",
    "steps": "steps of the engine",
    "running": "requests in a step",
    "waiting": "requests that wait for pages",
    "idle_pages": "pages of keys and values that no request holds",
    "num_pages": "pages of keys and values",
}
STATS_SECONDS = 1.0  # that a scrape waits for a worker


class Sums:
    """Count and nanoseconds, as KServe's statistics have them."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count, self.ns = 0, 0

    def add(self, seconds: float, count: int = 1) -> None:
        """One more, or several that took so long together.

        Args:
            seconds: of all together.
            count: how many.
        """
        self.count += count
        self.ns += int(seconds * 1e9)

    def to_json(self) -> dict[str, int]:
        """As the statistics hold them."""
        return {"count": self.count, "ns": self.ns}


class VersionMetrics:
    """The counts of one version of a model.

    Args:
        metrics: of the server.
        model, version: which.
    """

    def __init__(self, metrics: Metrics, model: str, version: int) -> None:
        labels = (model, str(version))
        self._metrics, self._labels = metrics, labels
        self.success, self.fail, self.queue, self.compute = Sums(), Sums(), Sums(), Sums()
        self._firsts, self._betweens = Sums(), Sums()
        self.kinds: set[str] = set()  # of errors
        self.batches: dict[int, Sums] = {}
        self.rows, self.last = 0, 0.0
        self._requests = metrics.requests.labels(*labels)
        self._seconds = metrics.seconds.labels(*labels)
        self._queue_seconds = metrics.queue_seconds.labels(*labels)
        self._batch_size = metrics.batch_size.labels(*labels)
        self._compute_seconds = metrics.compute_seconds.labels(*labels)
        self._first = metrics.first_token.labels(*labels)
        self._between = metrics.between_tokens.labels(*labels)

    def succeeded(self, seconds: float, at: float) -> None:
        """A request that was answered, and when (time.time()).

        Args:
            seconds: it took.
            at: seconds since 1970.
        """
        self._requests.inc()
        self._seconds.observe(seconds)
        self.success.add(seconds)
        self.last = at

    def failed(self, seconds: float, kind: str) -> None:
        """A request that was not answered, by the kind of error.

        Args:
            seconds: it took.
            kind: as status_of names it.
        """
        self._metrics.errors.labels(*self._labels, kind).inc()
        self.kinds.add(kind)
        self.fail.add(seconds)

    def batch(self, rows: int, waited: list[float], seconds: float) -> None:
        """A batch: its rows, the seconds that its requests waited, the seconds of computing.

        Args:
            rows: of the batch.
            waited: of each request.
            seconds: of computing.
        """
        self._batch_size.observe(rows)
        self._compute_seconds.observe(seconds)
        for each in waited:
            self._queue_seconds.observe(each)
        self.queue.add(sum(waited), len(waited))
        self.compute.add(seconds, len(waited))
        self.rows += rows
        self.batches.setdefault(rows, Sums()).add(seconds)

    def queued(self, seconds: float) -> None:
        """A request of a language model that waited so long before its first step.

        Args:
            seconds: it waited.
        """
        self._queue_seconds.observe(seconds)
        self.queue.add(seconds)

    def first_token(self, seconds: float) -> None:
        """From a request to its first token.

        Args:
            seconds: between both.
        """
        self._first.observe(seconds)
        self._firsts.add(seconds)

    def between_tokens(self, seconds: float) -> None:
        """From a token to the next.

        Args:
            seconds: between both.
        """
        self._between.observe(seconds)
        self._betweens.add(seconds)

    def tokens(self) -> dict[str, dict[str, int]]:
        """Sums of the times to the first token, and between tokens."""
        return {"first": self._firsts.to_json(), "between": self._betweens.to_json()}

    def statistics(self) -> dict[str, Any]:
        """As KServe's ModelStatistics has them; times in nanoseconds."""
        return {
            "name": self._labels[0],
            "version": self._labels[1],
            "last_inference": int(self.last * 1e3),
            "inference_count": self.rows or self.success.count,
            "execution_count": sum(s.count for s in self.batches.values()) or self.success.count,
            "inference_stats": {
                "success": self.success.to_json(),
                "fail": self.fail.to_json(),
                "queue": self.queue.to_json(),
                "compute_infer": self.compute.to_json(),
            },
            "batch_stats": [
                {"batch_size": n, "compute_infer": s.to_json()} for n, s in sorted(self.batches.items())
            ],
        }


class Metrics:
    """All counts of a server, in a registry of its own.

    Raises: ImportError without prometheus-client.
    """

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = registry = CollectorRegistry()

        def histogram(name: str, what: str, buckets: Iterable[float] = SECONDS) -> Any:
            return Histogram(PREFIX + name, what, LABELS, registry=registry, buckets=tuple(buckets))

        def gauge(name: str, what: str, labels: tuple[str, ...] = LABELS) -> Any:
            return Gauge(PREFIX + name, what, labels, registry=registry)

        self.requests = Counter(PREFIX + "requests", "requests that were answered", LABELS, registry=registry)
        self.errors = Counter(
            PREFIX + "errors", "requests that were not, by kind", (*LABELS, "kind"), registry=registry
        )
        self.seconds = histogram("request_seconds", "from a request to its whole answer")
        self.queue_seconds = histogram("queue_seconds", "that requests waited to be computed")
        self.compute_seconds = histogram("batch_seconds", "that a batch was computed")
        self.batch_size = histogram("batch_size", "rows of a batch", SIZES)
        self.first_token = histogram("time_to_first_token_seconds", "from a request to its first token")
        self.between_tokens = histogram("inter_token_seconds", "from a token to the next")
        self.ready = gauge("ready", "1 where a version takes requests")
        self.share = gauge("traffic_percent", "the share of requests that a version gets")
        self.users = gauge("requests_running", "requests that a version works on")
        self.waiting = gauge("requests_waiting", "requests that wait for a batch")
        self.restarts = gauge("worker_restarts", "times that a version's workers were started again")
        self.memory = gauge("worker_memory_bytes", "resident memory of a version's workers")
        self.page_use = gauge("page_use_ratio", "the part of the pages of keys and values that requests hold")
        self._engine = {key: gauge(f"engine_{key}", what) for key, what in ENGINE_COUNTS.items()}
        counted = self.requests, self.seconds, self.queue_seconds, self.compute_seconds, self.batch_size
        gauges = self.ready, self.share, self.users, self.waiting, self.restarts, self.memory, self.page_use
        tokens = self.first_token, self.between_tokens
        self._all: list[Any] = [*counted, *gauges, *tokens, *self._engine.values()]
        self._of: dict[tuple[str, int], VersionMetrics] = {}

    def of(self, model: str, version: int) -> VersionMetrics:
        """The counts of a version.

        Args:
            model, version: which.
        """
        numbers = self._of.get((model, version))
        if numbers is None:
            numbers = self._of[model, version] = VersionMetrics(self, model, version)
        return numbers

    def batch_observer(self, model: str, version: int) -> Callable[[int, list[float], float], None]:
        """What a version's batcher tells of its batches.

        Args:
            model, version: which.
        """
        return self.of(model, version).batch

    def statistics(self, model: str = "", version: str = "") -> list[dict[str, Any]]:
        """KServe's statistics of all versions that are named.

        Args:
            model, version: "" for all.
        """
        return [
            m.statistics()
            for (name, number), m in sorted(self._of.items())
            if model in ("", name) and version in ("", str(number))
        ]

    def forget(self, model: str, version: int) -> None:
        """Drops all of a version that is gone, so that versions which come and go leave nothing behind.

        Args:
            model, version: which.
        """
        labels = (model, str(version))
        gone = self._of.pop((model, version), None)
        for kind in gone.kinds if gone is not None else ():
            self.errors.remove(*labels, kind)
        for each in self._all:
            with contextlib.suppress(KeyError):
                each.remove(*labels)

    async def update(self, models: Any) -> dict[tuple[str, int], dict[str, Any]]:
        """Asks the workers and sets the gauges; returns what each version's workers said, added up.

        Args:
            models: all.
        """
        loaded = models.loaded()
        said = await asyncio.gather(*(_stats(v) for v in loaded))
        for model in models.describe():
            for v in model["versions"]:
                labels = (model["name"], str(v["version"]))
                self.ready.labels(*labels).set(v["ready"])
                self.share.labels(*labels).set(v["share"])
                self.users.labels(*labels).set(v["users"])
                self.waiting.labels(*labels).set(v["waiting"])
                self.restarts.labels(*labels).set(v["restarts"])
        deltas = {}
        for v, stats in zip(loaded, said):
            labels = (v.name, str(v.number))
            self.memory.labels(*labels).set(stats.get("rss", 0))
            for key, each in self._engine.items():
                if key in stats:
                    each.labels(*labels).set(stats[key])
            if stats.get("num_pages"):
                self.page_use.labels(*labels).set(1 - stats.get("idle_pages", 0) / stats["num_pages"])
            deltas[v.name, v.number] = stats
        return deltas

    def render(self) -> bytes:
        """Prometheus' text."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)


async def _stats(version: Any) -> dict[str, Any]:
    """The numbers that a version's workers give, added up; nothing of those that do not answer in time."""
    asked = (asyncio.wait_for(w.stats(), STATS_SECONDS) for w in version.workers)
    total: dict[str, Any] = {}
    for stats in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(stats, dict):
            for key, value in stats.items():
                if isinstance(value, (int, float)) and key not in ("id", "pid"):
                    total[key] = total.get(key, 0) + value
    return total
