"""Trains in every layout of 2 to 8 ranks and prints the tables of docs/measurements/parallel.md, the
largest differences from one process: python tests/parallel/proof.py [experts | context]

In each layout two runs of 20 steps, by SGD and AdamW; ends with an error where one differs by 1e-10. The
table "experts" is of layouts with sequences or experts that ranks share, "context" of a model without experts
on sequences that up to 8 ranks share, with sequence parallelism, too.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]
import test_expert_training  # noqa: E402
from tensor_training import OPTIMIZERS  # noqa: E402
from test_context_training import compare as compare_context  # noqa: E402
from test_expert_training import compare as compare_experts  # noqa: E402
from test_parallelize import compare, stages_of_zero  # noqa: E402


def experts() -> int:
    """Sequences of 8, so of at most 4 ranks; 8 experts where as many ranks share them, else 4. Returns the
    number of runs."""
    runs = 0
    print("| dp | cp | tp | pp | ep | zero 1 | zero 3 |\n| --- | --- | --- | --- | --- | --- | --- |")
    for ep, dp, cp, tp, pp in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4), (1, 2, 4), (1, 2, 4)):
        if not 2 <= dp * cp * tp * pp <= 8 or cp * ep == 1 or dp * cp % ep:
            continue
        if ep == 8 != test_expert_training.E:
            test_expert_training.E = 8
            test_expert_training.plainly.cache_clear()
        shape, cells = {"pp": pp, "dp": dp, "cp": cp, "tp": tp}, []
        shape = {name: n for name, n in shape.items() if n > 1}
        for zero in (1, 3):
            worst = max(compare_experts(each, 20, shape, ep, zero=zero) for each in OPTIMIZERS)
            runs += len(OPTIMIZERS)
            cells.append(f"{worst:.0e}")
        print(f"| {dp} | {cp} | {tp} | {pp} | {ep} | {' | '.join(cells)} |", flush=True)
    return runs


def context() -> int:
    """Returns the number of runs."""
    runs = 0
    print("| dp | cp | tp | pp | zero 0 | zero 2 |\n| --- | --- | --- | --- | --- | --- |")
    for dp, cp, tp, pp, sequence in itertools.product(
        (1, 2, 4), (2, 4, 8), (1, 2, 4), (1, 2, 4), (False, True)
    ):
        if dp * cp * tp * pp > 8 or (sequence and tp == 1):
            continue
        shape, cells = {"pp": pp, "dp": dp, "cp": cp, "tp": tp}, []
        shape = {name: n for name, n in shape.items() if n > 1}
        for zero in (0, 2):
            # A rank of four copies has one row.
            given = {"zero": zero, "p": 0.1, "sequence": sequence, "n_microbatches": 1 if dp == 4 else 2}
            worst = max(compare_context(each, 20, shape, **given) for each in OPTIMIZERS)
            runs += len(OPTIMIZERS)
            cells.append(f"{worst:.0e}")
        print(f"| {dp} | {cp} | {tp}{' +sp' * sequence} | {pp} | {' | '.join(cells)} |", flush=True)
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
    tables = {"experts": experts, "context": context}
    runs = tables.get("".join(sys.argv[1:]), dense)()
    print(f"{runs} runs of 20 steps in {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
