"""torch.utils.benchmark: times of statements, with warm-up, threads set and outliers named.

Times are seconds per run of the statement. `Timer` sets the number of threads (1 unless told otherwise),
which `timeit` of the standard library leaves alone, and waits for CUDA's work before it reads the clock.
"""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import cuda, get_num_threads, set_num_threads

__all__ = ["Compare", "Measurement", "Timer", "timer"]

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def timer() -> float:
    """Seconds by the clock that measures, once the work of all CUDA streams is over."""
    if cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()
    return timeit.default_timer()


def _scaled(seconds: float) -> str:
    unit, name = next(((u, n) for u, n in _UNITS if seconds >= u), _UNITS[-1])
    return f"{seconds / unit:.2f} {name}"


@dataclass
class Measurement:
    """What one statement took: `raw_times` are seconds of `number_per_run` runs each."""

    number_per_run: int
    raw_times: list[float]
    stmt: str = ""
    label: str | None = None
    sub_label: str | None = None
    description: str | None = None
    env: str | None = None
    num_threads: int = 1
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def times(self) -> list[float]:
        """Seconds per run."""
        return [t / self.number_per_run for t in self.raw_times]

    @property
    def median(self) -> float:
        """Median of the seconds that one run took."""
        return statistics.median(self.times)

    @property
    def mean(self) -> float:
        """Mean of the seconds that one run took."""
        return statistics.fmean(self.times)

    @property
    def iqr(self) -> float:
        """Seconds between the quartiles; 0 for a single time."""
        if len(self.times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return high - low

    @property
    def has_warnings(self) -> bool:
        """Whether the quartiles are over 10 % of the median apart."""
        return self.iqr > 0.1 * self.median

    @property
    def title(self) -> str:
        """Label and what is below it, or the statement."""
        return ": ".join(filter(None, (self.label, self.sub_label))) or self.stmt

    def __repr__(self) -> str:
        spread = f"\n  IQR: {_scaled(self.iqr)}" if len(self.raw_times) > 1 else ""
        noisy = "\n  WARNING: the quartiles are over 10 % of the median apart" if self.has_warnings else ""
        counts = f"{len(self.raw_times)} measurements, {self.number_per_run} runs each"
        threads = f"{self.num_threads} thread{'s' if self.num_threads > 1 else ''}"
        return f"{self.title}\n  Median: {_scaled(self.median)}{spread}\n  {counts}, {threads}{noisy}"


class Timer:
    """Measures a statement.

    Args:
        stmt, setup: Python source.
        timer: the clock.
        globals: names that both see.
        label, sub_label, description, env: for `Compare`: table, row, column.
        num_threads: of an op while it is measured.

    >>> import warptape
    >>> from warptape.utils.benchmark import Timer
    >>> m = Timer("x.exp()", globals={"x": warptape.rand(1000)}).timeit(20)
    >>> m.number_per_run, 0 < m.median < 1
    (20, True)
    """

    def __init__(
        self,
        stmt: str = "pass",
        setup: str = "pass",
        global_setup: str = "",
        timer: Callable[[], float] = timer,
        globals: dict[str, Any] | None = None,
        label: str | None = None,
        sub_label: str | None = None,
        description: str | None = None,
        env: str | None = None,
        num_threads: int = 1,
        language: str = "python",
    ) -> None:
        if language.lower() not in ("python", "py"):
            raise ValueError(f"Timer: statements are Python, got language={language!r}")
        if num_threads < 1:
            raise ValueError(f"Timer: num_threads must be at least 1, got {num_threads}")
        self._timer = timeit.Timer(stmt, "\n".join(filter(None, (global_setup, setup))), timer, globals)
        self._known: dict[str, Any] = {
            "stmt": stmt,
            "label": label,
            "sub_label": sub_label,
            "description": description,
            "env": env,
            "num_threads": num_threads,
        }

    def _runs(self, number: int) -> float:
        before = get_num_threads()
        set_num_threads(self._known["num_threads"])
        try:
            return self._timer.timeit(number)
        finally:
            set_num_threads(before)

    def timeit(self, number: int = 1_000_000) -> Measurement:
        """One measurement of `number` runs, after number / 100 runs, at least one, that do not count."""
        self._runs(max(number // 100, 1))
        return Measurement(number, [self._runs(number)], **self._known)

    def blocked_autorange(
        self, callback: Callable[[int, float], Any] | None = None, min_run_time: float = 0.2
    ) -> Measurement:
        """Measurements of as many runs as take a thousandth of `min_run_time` seconds, until that is over.

        `callback` gets the runs of each measurement and its seconds.
        """
        number = 1
        while (taken := self._runs(number)) < max(min_run_time / 1000, 1e-4):
            number *= 10 if taken == 0 else 2
        times: list[float] = []
        while sum(times) < min_run_time or len(times) < 2:
            times.append(self._runs(number))
            if callback is not None:
                callback(number, times[-1])
        return Measurement(number, times, **self._known)

    adaptive_autorange = blocked_autorange


class Compare:
    """A table of measurements: a row for each sub_label and threads, a column for each description."""

    def __init__(self, results: Sequence[Measurement]) -> None:
        self._results = list(results)

    def extend_results(self, results: Sequence[Measurement]) -> None:
        """Adds measurements."""
        self._results.extend(results)

    def __str__(self) -> str:
        out = []
        for label in dict.fromkeys(m.label for m in self._results):
            mine = [m for m in self._results if m.label == label]
            columns = list(dict.fromkeys(m.description or "" for m in mine))
            rows = list(dict.fromkeys((m.num_threads, m.sub_label or m.stmt) for m in mine))
            cells = {
                (m.num_threads, m.sub_label or m.stmt, m.description or ""): _scaled(m.median) for m in mine
            }
            table = [["threads", "", *columns]]
            table += [[str(n), row, *(cells.get((n, row, c), "") for c in columns)] for n, row in rows]
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            lines = [
                "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in table
            ]
            out.append("\n".join([f"[ {label or 'times'} ]", *lines]))
        return "\n\n".join(out)

    def print(self) -> None:
        """Prints the table."""
        print(self)
