"""utils.benchmark: arithmetic on known times, threads set and put back, statements that sleep."""

import doctest
import time

import pytest
import warptape as torch
from warptape.utils import benchmark
from warptape.utils.benchmark import Compare, Measurement, Timer


def test_figures_of_known_times():
    m = Measurement(10, [1.0, 2.0, 3.0, 4.0, 10.0], stmt="f()")
    assert m.times == [0.1, 0.2, 0.3, 0.4, 1.0]
    assert (m.median, m.mean) == (0.3, pytest.approx(0.4))
    assert m.iqr == pytest.approx(0.2)
    assert m.has_warnings
    assert "Median: 300.00 ms" in repr(m)
    assert "WARNING" in repr(m)
    assert not Measurement(1, [5e-6, 5e-6, 5.1e-6]).has_warnings
    assert "Median: 5.00 us" in repr(Measurement(1, [5e-6]))


def test_a_statement_that_sleeps():
    m = Timer("sleep(0.01)", globals={"sleep": time.sleep}).timeit(3)
    assert m.number_per_run == 3
    assert m.median >= 0.01
    seen = []
    m = Timer("sleep(0.01)", globals={"sleep": time.sleep}).blocked_autorange(lambda *x: seen.append(x), 0.05)
    assert m.number_per_run == 1
    assert len(m.times) == len(seen) >= 2
    assert sum(m.raw_times) >= 0.05 or len(m.raw_times) == 2


def test_threads_are_set_and_put_back():
    before, seen = torch.get_num_threads(), []
    Timer(
        "note(threads())", globals={"note": seen.append, "threads": torch.get_num_threads}, num_threads=1
    ).timeit(2)
    assert set(seen) == {1}
    with pytest.raises(ZeroDivisionError):
        Timer("1 / 0").timeit(1)
    assert torch.get_num_threads() == before


def test_a_table():
    results = [
        Measurement(1, [x], label="products", sub_label=row, description=column)
        for row, column, x in (("8 x 8", "mm", 1e-6), ("8 x 8", "bmm", 2e-6), ("64 x 64", "mm", 3e-3))
    ]
    table = Compare(results[:2])
    table.extend_results(results[2:])
    lines = str(table).splitlines()
    assert lines[0] == "[ products ]"
    assert lines[1].split() == ["threads", "mm", "bmm"]
    assert lines[2].split() == ["1", "8", "x", "8", "1.00", "us", "2.00", "us"]
    assert lines[3].split() == ["1", "64", "x", "64", "3.00", "ms"]


def test_figures_that_are_certain():
    assert Measurement(1, [1.0]).significant_figures == 1
    assert Measurement(1, [2.0] * 8).significant_figures == 5
    noisy = Measurement(1, [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7])
    steady = Measurement(1, [1.0 + t / 1000 for t in noisy.times])
    assert noisy.significant_figures == 1 and 3 <= steady.significant_figures <= 4
    assert noisy.meets_confidence(0.5) and not noisy.meets_confidence(0.1)
    assert not Measurement(1, [1.0]).meets_confidence()


def test_merged_measurements():
    parts = [
        Measurement(2, [2.0, 4.0], "f()", "a"),
        Measurement(1, [3.0], "f()", "a"),
        Measurement(1, [9.0], "g()"),
    ]
    first, second = Measurement.merge(parts)
    assert (first.times, first.number_per_run, first.stmt, first.label) == ([1.0, 2.0, 3.0], 1, "f()", "a")
    assert (second.times, second.stmt) == ([9.0], "g()") and parts[0].raw_times == [2.0, 4.0]


def test_runs_until_times_are_close():
    now = [0.0]

    def timer_of(seconds):
        def advance():
            now[0] += next(seconds)

        return Timer("advance()", timer=lambda: now[0], globals={"advance": advance})

    seen = []
    m = timer_of(iter([1.0, 1.0, 9.0, *[2.0] * 50])).adaptive_autorange(
        threshold=0.5, min_run_time=1.0, max_run_time=100.0, callback=lambda *x: seen.append(x)
    )
    assert m.raw_times == [1.0, 9.0, 2.0, 2.0, 2.0]  # the first says that one run is long enough
    assert seen == [(1, t) for t in m.raw_times] and m.meets_confidence(0.5)
    m = timer_of(iter([1.0, 9.0] * 50)).adaptive_autorange(0.1, min_run_time=1.0, max_run_time=30.0)
    assert 30 <= sum(m.raw_times) < 40 and not m.meets_confidence(0.1)
    with pytest.raises(ValueError, match="min_run_time=2"):
        Timer("1").adaptive_autorange(min_run_time=2, max_run_time=1)


def test_a_table_with_marks():
    def made(row, column, times):
        return Measurement(1, times, sub_label=row, description=column)

    results = [made("a", "x", [1.26, 1.0, 1.5]), made("a", "y", [4.0] * 3), made("b", "x", [3.0] * 3)]
    table = Compare([*results, made("b", "y", [1.5] * 3)])
    table.trim_significant_figures()
    table.highlight_warnings()
    assert [line.split() for line in str(table).splitlines()[2:]] == [
        ["1", "a", "1", "s", "(!)", "4.00", "s"],
        ["1", "b", "3.00", "s", "1.50", "s"],
    ]
    plain = str(table)
    table.colorize()
    by_column = str(table)
    table.colorize(rowwise=True)
    by_row = str(table)
    green, red, end = "\x1b[32m", "\x1b[31m", "\x1b[0m"
    assert [by_column.count(c) for c in (green, red, end)] == [2, 2, 4] and green + "1.50 s" in by_column
    assert [by_row.count(c) for c in (green, red, end)] == [2, 1, 3] and red + "4.00 s" in by_row
    for colour in (green, red, end):
        by_row = by_row.replace(colour, "")
    assert [line.rstrip() for line in by_row.splitlines()] == plain.splitlines()


def test_what_is_not_there():
    timer = Timer("1")
    for call in (timer.collect_callgrind, timer.repeat, timer.autorange, benchmark.CallgrindStats):
        with pytest.raises(NotImplementedError, match="blocked_autorange"):
            call()
    with pytest.raises(AttributeError, match=r"no torch\.utils\.benchmark\.Fuzzer"):
        _ = benchmark.Fuzzer


def test_wrong_arguments_and_the_docstring():
    with pytest.raises(ValueError, match="statements are Python"):
        Timer("x", language="c++")
    with pytest.raises(ValueError, match="num_threads must be at least 1"):
        Timer("x", num_threads=0)
    failed, tried = doctest.testmod(benchmark)
    assert failed == 0
    assert tried == 10
