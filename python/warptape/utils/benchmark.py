"""torch.utils.benchmark: times of statements, with warm-up, threads set and outliers named.

Times are seconds per run of the statement. `Timer` sets the number of threads (1 unless told otherwise),
which `timeit` of the standard library leaves alone, and waits for CUDA's work before it reads the clock.
"""

from __future__ import annotations

import math
import statistics
import timeit
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from .. import cuda
from .._missing import unusable
from ..core import get_num_threads, set_num_threads

__all__ = ["CallgrindStats", "Compare", "FunctionCounts", "Measurement", "Timer", "timer"]

_NO_CALLGRIND = "instructions are not counted (Valgrind is not run); take Timer.blocked_autorange()"
CallgrindStats = unusable("torch.utils.benchmark.CallgrindStats", _NO_CALLGRIND)
FunctionCounts = unusable("torch.utils.benchmark.FunctionCounts", _NO_CALLGRIND)

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def timer() -> float:
    """Seconds by the clock that measures, once the work of all CUDA streams is over.

    Without CUDA it is `timeit.default_timer`.
    """
    if cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()
    return timeit.default_timer()


def _scaled(seconds: float, figures: int | None = None) -> str:
    unit, name = next(((u, n) for u, n in _UNITS if seconds >= u), _UNITS[-1])
    value = seconds / unit
    if figures is None or value == 0:
        return f"{value:.2f} {name}"
    digits = figures - 1 - math.floor(math.log10(value))
    return f"{round(value, digits):.{min(max(digits, 0), 2)}f} {name}"


@dataclass
class Measurement:
    """What one statement took: `raw_times` are seconds of `number_per_run` runs each.

    Args:
        number_per_run: runs of the statement in each time.
        raw_times: seconds.
        stmt: the statement.
        label, sub_label, description, env: names that `Compare` sorts by.
        num_threads: threads that the kernels may use.
        metadata: what the caller wants to keep with it.
    """

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
        """Seconds that one run took in each measurement: `raw_times` over `number_per_run`.

        >>> from warptape.utils.benchmark import Measurement
        >>> Measurement(2, [4.0, 6.0]).times
        [2.0, 3.0]
        """
        return [t / self.number_per_run for t in self.raw_times]

    @property
    def median(self) -> float:
        """The median of `times`: the figure that a busy machine moves least.

        >>> from warptape.utils.benchmark import Measurement
        >>> Measurement(2, [4.0, 6.0, 100.0]).median
        3.0
        """
        return statistics.median(self.times)

    @property
    def mean(self) -> float:
        """The mean of `times`, which a few slow runs raise; `median` does not follow them.

        >>> from warptape.utils.benchmark import Measurement
        >>> Measurement(2, [4.0, 6.0]).mean
        2.5
        """
        return statistics.fmean(self.times)

    @property
    def iqr(self) -> float:
        """The interquartile range of the times of a run, in seconds.

        It is 0 for a single time.
        """
        if len(self.times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return high - low

    @property
    def has_warnings(self) -> bool:
        """Whether the times vary much: the quartiles are over 10 % of the median apart.

        `Compare.highlight_warnings` marks such times.
        """
        return self.iqr > 0.1 * self.median

    def meets_confidence(self, threshold: float = 0.25) -> bool:
        """Whether there are several times, and the quartiles less than `threshold` of the median apart.

        Args:
            threshold: a share of the median.
        """
        return len(self.raw_times) > 1 and self.iqr < threshold * self.median

    @property
    def significant_figures(self) -> int:
        """How many figures of the median are certain, 1 to 5.

        From the standard error of the times between the quartiles, at 90 % (z = 1.645), as PyTorch's.
        """
        times = sorted(self.times)
        inner = times[len(times) // 4 : len(times) - len(times) // 4]
        if len(inner) < 2 or self.median <= 0:
            return 1
        interval = 2 * 1.645 * statistics.stdev(inner) / math.sqrt(len(inner))
        return 5 if not interval else min(max(-math.floor(math.log10(interval / self.median)), 1), 5)

    @staticmethod
    def merge(measurements: Iterable[Measurement]) -> list[Measurement]:
        """One measurement for all of the same statement, names and threads; its times are of single runs.

        Args:
            measurements: of the same statement or of several.
        """
        groups: dict[Any, list[Measurement]] = {}
        for m in measurements:
            key = (m.stmt, m.label, m.sub_label, m.description, m.env, m.num_threads)
            groups.setdefault(key, []).append(m)
        return [
            replace(same[0], number_per_run=1, raw_times=[t for m in same for t in m.times])
            for same in groups.values()
        ]

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
        """One measurement of `number` runs, after number / 100 runs, at least one, that do not count.

        Args:
            number: runs of the statement that are timed together.
        """
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

    def adaptive_autorange(
        self,
        threshold: float = 0.1,
        *,
        min_run_time: float = 0.01,
        max_run_time: float = 10.0,
        callback: Callable[[int, float], Any] | None = None,
    ) -> Measurement:
        """Blocks of at least `min_run_time` seconds, until the quartiles of all times are close.

        Close is less than `threshold` of the median apart; after `max_run_time` seconds it ends anyway.

        Raises:
            ValueError: `min_run_time` is over `max_run_time`, or a number is not above 0.
        """
        if not (0 < min_run_time <= max_run_time and threshold > 0):
            raise ValueError(
                "adaptive_autorange: expected 0 < min_run_time <= max_run_time and threshold > 0, got "
                f"min_run_time={min_run_time}, max_run_time={max_run_time}, threshold={threshold}"
            )
        measurement = self.blocked_autorange(callback, min_run_time)
        while not measurement.meets_confidence(threshold) and sum(measurement.raw_times) < max_run_time:
            measurement.raw_times.append(self._runs(measurement.number_per_run))
            if callback is not None:
                callback(measurement.number_per_run, measurement.raw_times[-1])
        return measurement

    def repeat(self, repeat: int = 5, number: int = 1_000_000) -> NoReturn:
        """timeit's, which PyTorch leaves out, too. NotImplementedError.

        `blocked_autorange` repeats the statement and measures how much its times differ.
        """
        raise NotImplementedError("Timer.repeat: take Timer.blocked_autorange(), which repeats")

    def autorange(self, callback: Callable[[int, float], object] | None = None) -> NoReturn:
        """timeit's, which PyTorch leaves out, too. NotImplementedError.

        `blocked_autorange` chooses the number of runs.
        """
        raise NotImplementedError("Timer.autorange: take Timer.blocked_autorange()")

    def collect_callgrind(self, number: int = 100, **options: Any) -> NoReturn:
        """Would count instructions, which PyTorch does by Valgrind.

        Args:
            number: not looked at.
            **options: not looked at.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"Timer.collect_callgrind: {_NO_CALLGRIND}")


class Compare:
    """A table of measurements: a row for each sub_label and threads, a column for each description.

    Args:
        results: as `Timer` returns them.
    """

    def __init__(self, results: Sequence[Measurement]) -> None:
        self._results = list(results)
        self._trims = self._colours = self._warns = self._rowwise = False

    def extend_results(self, results: Sequence[Measurement]) -> None:
        """Adds measurements.

        Args:
            results: further measurements.
        """
        self._results.extend(results)

    def trim_significant_figures(self) -> None:
        """From now on times have no more figures than are certain.

        How many are certain follows from the distance of the quartiles.
        """
        self._trims = True

    def highlight_warnings(self) -> None:
        """Marks times that vary much with "(!)" from now on.

        Times vary much where their quartiles are over 10 % of the median apart.
        """
        self._warns = True

    def colorize(self, rowwise: bool = False) -> None:
        """From now on the shortest time of a column, or of a row, is green and those over its double red.

        Args:
            rowwise: whether times are compared within a row.
        """
        self._colours, self._rowwise = True, rowwise

    def _cell(self, m: Measurement) -> str:
        text = _scaled(m.median, m.significant_figures if self._trims else None)
        return f"{text} (!)" if self._warns and m.has_warnings else text

    def _colour(self, m: Measurement, mine: list[Measurement]) -> str:
        """The escape sequence of a terminal, or nothing."""

        def group(other: Measurement) -> Any:
            row = (other.num_threads, other.sub_label or other.stmt)
            return row if self._rowwise else (other.description or "")

        best = min(other.median for other in mine if group(other) == group(m))
        return "\x1b[32m" if m.median == best else "\x1b[31m" if m.median > 2 * best else ""

    def __str__(self) -> str:
        out = []
        for label in dict.fromkeys(m.label for m in self._results):
            mine = [m for m in self._results if m.label == label]
            columns = list(dict.fromkeys(m.description or "" for m in mine))
            rows = list(dict.fromkeys((m.num_threads, m.sub_label or m.stmt) for m in mine))
            places = {(m.num_threads, m.sub_label or m.stmt, m.description or ""): m for m in mine}
            cells = {place: self._cell(m) for place, m in places.items()}
            table = [["threads", "", *columns]]
            table += [[str(n), row, *(cells.get((n, row, c), "") for c in columns)] for n, row in rows]
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            padded = [[c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in table]
            for i, row in enumerate(rows):
                for j, column in enumerate(columns):
                    m = places.get((*row, column))
                    if self._colours and m is not None and (colour := self._colour(m, mine)):
                        padded[i + 1][j + 2] = f"{colour}{padded[i + 1][j + 2]}\x1b[0m"
            lines = ["  ".join(line).rstrip() for line in padded]
            out.append("\n".join([f"[ {label or 'times'} ]", *lines]))
        return "\n\n".join(out)

    def print(self) -> None:
        """Prints the table to standard output.

        `str()` of this object is the same text.
        """
        print(self)
