"""Runs PyTorch's own samples (op_db, module_db, optim_db) here and in PyTorch, and prints what differs.

    python tools/parity.py cumsum logcumsumexp          # every sample of these
    python tools/parity.py nn.Linear optim.Adam         # modules and optimizers
    python tools/parity.py --dtype float64 --aspect gradient linalg.eigh
    python tools/parity.py --all                        # the default selection of everything; writes the
                                                        # table in docs/compatibility.md and the list of
                                                        # tests/parity/expected_failures.txt

It needs PyTorch 2.13 and expecttest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402
import warptape  # noqa: E402
from parity import filters  # noqa: E402
from parity.ops import ASPECTS, Failure, OpParity  # noqa: E402


def chosen(names: list[str]) -> list[Any]:
    """The entries with these names, with or without a variant."""
    found = []
    for name in names:
        some = [e for e in filters.entries() if name in (e.name, filters.full_name(e))]
        if not some:
            raise SystemExit(f"{name}: no entry of op_db has this name, or it is left out (filters.py)")
        found += some
    return found


def run(entry: Any, limits: dict[str, int] | None, dtypes: Any) -> tuple[str, list[Failure], float]:
    begun = time.perf_counter()
    try:
        found = list(OpParity(entry, limits).failures(dtypes))
    except Exception as error:  # the harness itself, on a sample that it cannot take
        found = [
            Failure(filters.full_name(entry), "raises", "-", f"harness: {type(error).__name__}: {error}")
        ]
    return filters.full_name(entry), found, time.perf_counter() - begun


def show(found: list[Failure], aspects: list[str], most: int) -> None:
    """Failures, at most `most` of each op, aspect and dtype."""
    counts: dict[tuple[str, str, str], int] = {}
    for failure in found:
        if aspects and failure.aspect not in aspects:
            continue
        counts[failure.key] = counts.get(failure.key, 0) + 1
        if counts[failure.key] <= most:
            print(f"{failure.name} {failure.aspect} {failure.dtype}: {failure.cause}\n    {failure.sample}")
    for (name, aspect, dtype), count in counts.items():
        if count > most:
            print(f"{name} {aspect} {dtype}: {count - most} more")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="entries, as op_db names them")
    parser.add_argument("--all", action="store_true", help="everything, in the default selection")
    parser.add_argument("--dtype", action="append", default=[], help="only this dtype")
    parser.add_argument("--aspect", action="append", default=[], choices=ASPECTS, help="only this aspect")
    parser.add_argument("--most", type=int, default=2, help="failures shown per op, aspect and dtype")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warptape.set_num_threads(1)
    dtypes = tuple(getattr(torch, name) for name in options.dtype) or filters.DTYPES
    if options.all:
        return everything(options, dtypes)
    failed = 0
    for entry in chosen(options.names):
        name, found, _ = run(entry, {}, dtypes)
        found = [f for f in found if not options.aspect or f.aspect in options.aspect]
        show(found, options.aspect, options.most)
        print(f"{name}: {f'{len(found)} comparisons fail' if found else 'all right'}")
        failed += bool(found)
    return int(failed > 0)


_work: list[Any] = []
_dtypes: Any = filters.DTYPES


def _one(index: int) -> tuple[str, list[Failure], float]:
    return run(_work[index], None, _dtypes)


def everything(options: argparse.Namespace, dtypes: Any) -> int:
    global _dtypes
    _work[:], _dtypes = filters.entries(), dtypes
    found: list[Failure] = []
    slow = []
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for name, failures, seconds in pool.imap_unordered(_one, range(len(_work)), chunksize=4):
            found += failures
            slow.append((seconds, name))
    found.sort(key=lambda f: (f.name, ASPECTS.index(f.aspect), f.dtype))
    show(found, options.aspect, options.most)
    print("slowest:", [f"{name} {seconds:.1f}s" for seconds, name in sorted(slow)[-15:]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
