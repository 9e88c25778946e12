"""Compare single calls of some 2,000 functions and dtypes with PyTorch, one thread each.

    python benchmarks/ops.py                     all; takes more than 9 minutes
    python benchmarks/ops.py --only float64      those whose names have this in them
    python benchmarks/ops.py --only backward     float32 with gradients
    python benchmarks/ops.py --keep              and write benchmarks/results/ops.md

Prints how the ratios time(warptape) / time(PyTorch) are spread, and the rows above --limit. Calls
that PyTorch refuses are left out; those that warptape refuses are named.
"""

from __future__ import annotations

import argparse

import numpy as np
from _harness import HERE, LIBRARIES, Measured, Worker, machine, measure, versions
from _op_rows import ROWS

LIMITS = (10.0, 5.0, 2.0, 1.5, 1.2, 1.0)


def report(done: list[tuple[float, Measured]], refused: list[str], limit: float, only: str) -> str:
    ratios = np.array([ratio for ratio, _ in done])
    info, used = machine(), versions()
    lines = [
        "# Single calls beside PyTorch",
        "",
        f"`benchmarks/ops.py --only '{only}'`, {len(done)} calls, one thread, {info['processor']},",
        f"load at the end {info['load_average']:.1f}; warptape {used['commit']}, PyTorch {used['torch']}.",
        "Time of warptape over PyTorch's:",
        "",
        f"- geometric mean {np.exp(np.log(ratios).mean()):.2f}, median {np.median(ratios):.2f}",
        *(f"- above {most:g}: {int((ratios > most).sum())}" for most in LIMITS),
        f"- refused by warptape: {', '.join(refused) or 'none'}",
        "",
        f"Above {limit:g}:",
        "",
        "| call | ratio | warptape | PyTorch |",
        "| --- | --- | --- | --- |",
    ]
    for ratio, row in sorted(done, key=lambda pair: -pair[0]):
        if ratio > limit:
            ours, peers = (row.medians()[library] * 1e6 for library in LIBRARIES)
            lines.append(f"| {row.name} | {ratio:.2f} | {ours:.0f} us | {peers:.0f} us |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1.5, help="print rows above this ratio (default 1.5)")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/ops.md")
    options = parser.parse_args()
    rows = [row for row in ROWS if options.only in row.name]
    if not rows:
        parser.error(f"no row has {options.only!r} in its name")
    workers = {library: Worker(library, "_op_rows") for library in LIBRARIES}
    done, refused = [], []
    try:
        for row in rows:
            measured = measure(row, workers, options.rounds, 0.01, 1)
            if measured.error is None:
                medians = measured.medians()
                done.append((medians["warptape"] / medians["torch"], measured))
            elif measured.error.startswith("warptape"):
                refused.append(row.name)
    finally:
        for worker in workers.values():
            worker.close()
    text = report(done, refused, options.limit, options.only)
    print(text)
    if options.keep:
        (HERE / "results" / "ops.md").write_text(text)


if __name__ == "__main__":
    main()
