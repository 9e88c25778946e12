"""The grouped product of 8 experts beside one product of the same work, forward and backward, in turns.

    python benchmarks/experts.py [--rows 2048] [--width 512] [--hidden 1024] [--rounds 15]

Prints medians in milliseconds and the share of the single product's speed that the grouped one keeps
(target 0.9), for balanced experts and for one with half of the tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import warptape as torch
from warptape.parallel.experts import grouped_mm

EXPERTS = 8


def seconds(work: Callable[[], torch.Tensor]) -> float:
    """Forward and backward, once."""
    start = time.perf_counter()
    work().sum().backward()
    return time.perf_counter() - start


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    x = torch.randn(options.rows, options.width, requires_grad=True)
    one = torch.randn(options.width, options.hidden, requires_grad=True)
    many = torch.randn(EXPERTS, options.width, options.hidden, requires_grad=True)
    half = options.rows // 2
    rest = (options.rows - half) // (EXPERTS - 1)
    layouts = {
        "balanced": [options.rows // EXPERTS] * EXPERTS,
        "half on one": [options.rows - rest * (EXPERTS - 1), *[rest] * (EXPERTS - 1)],
    }
    for name, counts in layouts.items():
        times: dict[str, list[float]] = {"one": [], "grouped": []}
        for i in range(options.rounds + 2):
            for key, work in (("one", lambda: x @ one), ("grouped", lambda c=counts: grouped_mm(x, many, c))):
                x.grad = one.grad = many.grad = None
                taken = seconds(work)
                if i >= 2:
                    times[key].append(taken)
        single, grouped = (1e3 * statistics.median(times[key]) for key in ("one", "grouped"))
        print(f"{name:12} one {single:.2f} ms, {EXPERTS} experts {grouped:.2f} ms: {single / grouped:.2f}")


if __name__ == "__main__":
    main()
