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


def test_wrong_arguments_and_the_docstring():
    with pytest.raises(ValueError, match="statements are Python"):
        Timer("x", language="c++")
    with pytest.raises(ValueError, match="num_threads must be at least 1"):
        Timer("x", num_threads=0)
    failed, tried = doctest.testmod(benchmark)
    assert failed == 0
    assert tried == 4
