"""The grouped product of 8 experts beside one product of the same work, in turns.

    python benchmarks/experts.py [--rows 2048 8192] [--width 512] [--hidden 1024] [--rounds 15] [--cpu-time]

For balanced experts and for one with half of the tokens prints medians in milliseconds of forward, and of
forward and backward, and the share of the single product's speed that the grouped one keeps (target 0.9): the
median over the rounds, in each of which one follows the other, so that a machine's slow moments fall on both.
With --cpu-time the calling thread's time counts instead, for machines with other work; set
WARPTAPE_NUM_THREADS=1 then.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import warptape as torch
from warptape.parallel.experts import grouped_mm

EXPERTS = 8


def compare(
    name: str, one: Callable[[], object], many: Callable[[], object], rounds: int, clock: Callable[[], float]
) -> None:
    """A line for two pieces of work."""
    times: list[tuple[float, float]] = []
    for i in range(rounds + 2):
        marks = [clock()]
        for work in (one, many):
            work()
            marks.append(clock())
        if i >= 2:
            times.append((marks[1] - marks[0], marks[2] - marks[1]))
    single, grouped = (1e3 * statistics.median(each) for each in zip(*times, strict=True))
    share = statistics.median(a / b for a, b in times)
    print(f"{name:36} one {single:7.2f} ms, {EXPERTS} experts {grouped:7.2f} ms: {share:.2f}", flush=True)


def measure(rows: int, options: argparse.Namespace) -> None:
    """All lines of a number of rows."""
    clock = time.thread_time if options.cpu_time else time.perf_counter
    x = torch.randn(rows, options.width, requires_grad=True)
    one = torch.randn(options.width, options.hidden, requires_grad=True)
    many = torch.randn(EXPERTS, options.width, options.hidden, requires_grad=True)
    gradient = torch.randn(rows, options.hidden)
    rest = rows // 2 // (EXPERTS - 1)
    layouts = {
        "balanced": [rows // EXPERTS] * EXPERTS,
        "half on one": [rows - rest * (EXPERTS - 1), *[rest] * (EXPERTS - 1)],
    }

    def backward(y: torch.Tensor) -> None:
        x.grad = one.grad = many.grad = None
        y.backward(gradient)

    for name, counts in layouts.items():

        def grouped(counts: list[int] = counts) -> torch.Tensor:
            return grouped_mm(x, many, counts)

        title = f"{rows} rows {name}, forward"
        compare(title, lambda: x @ one, grouped, options.rounds, clock)
        compare(
            f"{title} and backward",
            lambda: backward(x @ one),
            lambda grouped=grouped: backward(grouped()),
            options.rounds,
            clock,
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    for rows in options.rows:
        measure(rows, options)


if __name__ == "__main__":
    main()
