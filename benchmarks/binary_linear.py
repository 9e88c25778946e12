"""The xnor layer against this library's float32 linear layer, in one run.

    python benchmarks/binary_linear.py                 2,048 x 2,048, one thread, batch 1 to 64
    python benchmarks/binary_linear.py --threads 2 --size 1024

Both take turns; a time is the least of all rounds, with one thread that thread's processor time, which
counts no waiting for a processor. Exits with 1 where the xnor layer is not `--goal` times as fast.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import warptape as wt
from warptape import _C
from warptape.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _harness import machine


def main() -> int:
    parser = argparse.ArgumentParser(description="The xnor layer against float32.")
    parser.add_argument("--size", type=int, default=2048, help="inputs and outputs (default 2048)")
    parser.add_argument("--threads", type=int, default=1, help="(default 1)")
    parser.add_argument("--rounds", type=int, default=20, help="(default 20)")
    parser.add_argument("--goal", type=float, default=10.0, help="least ratio (default 10)")
    options = parser.parse_args()
    wt.set_num_threads(options.threads)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    n = options.size
    wt.manual_seed(0)
    weight = wt.randn(n, n)
    words, scale = _C._private._pack_signs(weight), weight.abs().mean(1)
    print(machine(), f"\n\n{n} x {n}, {options.threads} thread(s), least of {options.rounds} rounds\n")
    print("| batch | float32, us | xnor, us | ratio |\n| ---: | ---: | ---: | ---: |")
    least = float("inf")
    with wt.inference_mode():
        for batch in (1, 2, 4, 8, 16, 32, 64):
            x = wt.randn(batch, n)
            calls = (
                lambda x=x: F.linear(x, weight),
                lambda x=x: _C._private._binary_linear(x, words, scale),
            )
            best = [float("inf")] * 2
            for _ in range(options.rounds):
                for i, call in enumerate(calls):
                    start = clock()
                    for _ in range(4):
                        call()
                    best[i] = min(best[i], (clock() - start) / 4)
            least = min(least, best[0] / best[1])
            print(f"| {batch} | {best[0] * 1e6:.1f} | {best[1] * 1e6:.1f} | {best[0] / best[1]:.1f} |")
    print(f"\nleast ratio {least:.1f}, goal {options.goal:g}")
    return 0 if least >= options.goal else 1


if __name__ == "__main__":
    sys.exit(main())
