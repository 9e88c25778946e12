"""Trains in every layout of 2 to 8 ranks and prints the tables of docs/parallel.md, the largest differences
from one process: python tests/parallel/proof.py [experts]

In each layout two runs of 20 steps, by SGD and AdamW; ends with an error where one differs by 1e-10. The
table "experts" is of layouts with sequences or experts that ranks share.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]
from tensor_training import OPTIMIZERS  # noqa: E402
from test_expert_training import E  # noqa: E402
from test_expert_training import compare as compare_experts  # noqa: E402
from test_parallelize import compare, stages_of_zero  # noqa: E402


def experts() -> int:
    """Sequences of 8, so of at most 4 ranks. Returns the number of runs."""
    runs = 0
    print("| dp | cp | tp | pp | ep | zero 1 | zero 3 |\n| --- | --- | --- | --- | --- | --- | --- |")
    for dp, cp, tp, pp, ep in itertools.product((1, 2, 4, 8), (1, 2, 4), (1, 2), (1, 2), (1, 2, 4)):
        if not 2 <= dp * cp * tp * pp <= 8 or cp * ep == 1 or dp * cp % ep or E % ep:
            continue
        shape, cells = {"pp": pp, "dp": dp, "cp": cp, "tp": tp}, []
        shape = {name: n for name, n in shape.items() if n > 1}
        for zero in (1, 3):
            worst = max(compare_experts(each, 20, shape, ep, zero=zero) for each in OPTIMIZERS)
            runs += len(OPTIMIZERS)
            cells.append(f"{worst:.0e}")
        print(f"| {dp} | {cp} | {tp} | {pp} | {ep} | {' | '.join(cells)} |", flush=True)
    return runs


def dense() -> int:
    """Returns the number of runs."""
    runs = 0
    print("| dp | tp | pp | zero 0 | zero 1 | zero 2 | zero 3 |\n| --- | --- | --- | --- | --- | --- | --- |")
    for dp, tp, pp in itertools.product((1, 2, 4, 8), repeat=3):
        if not 2 <= dp * tp * pp <= 8 or tp > 4 or pp > 4:  # of 4 heads and 4 layers
            continue
        shape, cells = {"pp": pp, "dp": dp, "tp": tp}, [""] * 4
        for zero in stages_of_zero(shape):
            worst = max(compare(optimizer, 20, shape, zero) for optimizer in OPTIMIZERS)
            cells[zero], runs = f"{worst:.0e}", runs + len(OPTIMIZERS)
        print(f"| {dp} | {tp} | {pp} | {' | '.join(cells)} |", flush=True)
    return runs


def main() -> None:
    began = time.monotonic()
    runs = experts() if sys.argv[1:] == ["experts"] else dense()
    print(f"{runs} runs of 20 steps in {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
