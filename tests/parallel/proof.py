"""Trains in every layout of 2 to 8 ranks and prints the table of docs/parallel.md, the largest differences
from one process: python tests/parallel/proof.py

In each layout two runs of 20 steps, by SGD and AdamW; ends with an error where one differs by 1e-10.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]
from tensor_training import OPTIMIZERS  # noqa: E402
from test_parallelize import compare, stages_of_zero  # noqa: E402


def main() -> None:
    began, runs = time.monotonic(), 0
    print("| dp | tp | pp | zero 0 | zero 1 | zero 2 | zero 3 |\n| --- | --- | --- | --- | --- | --- | --- |")
    for dp, tp, pp in itertools.product((1, 2, 4, 8), repeat=3):
        if not 2 <= dp * tp * pp <= 8 or tp > 4 or pp > 4:  # of 4 heads and 4 layers
            continue
        shape, cells = {"pp": pp, "dp": dp, "tp": tp}, [""] * 4
        for zero in stages_of_zero(shape):
            worst = max(compare(optimizer, 20, shape, zero) for optimizer in OPTIMIZERS)
            cells[zero], runs = f"{worst:.0e}", runs + len(OPTIMIZERS)
        print(f"| {dp} | {tp} | {pp} | {' | '.join(cells)} |", flush=True)
    print(f"{runs} runs of 20 steps in {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
