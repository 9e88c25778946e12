"""Runs PyTorch's own samples (op_db, module_db, optim_db) here and in PyTorch, and prints what differs.

    python tools/parity.py cumsum logcumsumexp          # every sample of these
    python tools/parity.py nn.Linear optim.Adam         # modules and optimizers
    python tools/parity.py --dtype float64 --aspect gradient linalg.eigh
    python tools/parity.py --update cumsum sort         # their lines of expected_failures.txt anew
    python tools/parity.py --all                        # the default selection of everything; writes the
                                                        # table in docs/measurements/compatibility.md and
                                                        # the list of tests/parity/expected_failures.txt

It needs PyTorch 2.13 and expecttest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import compatibility  # noqa: E402
import torch  # noqa: E402
import warptape  # noqa: E402
from parity import filters, gate, modules, optimizers  # noqa: E402
from parity.ops import ASPECTS, Failure  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "parity.json"
ENTRIES = gate.everything()


def chosen(names: list[str]) -> list[str]:
    """The entries with these names, with or without a variant."""
    found = []
    for name in names:
        variants = [filters.full_name(entry) for entry in filters.entries() if entry.name == name]
        some = [name] if name in ENTRIES and name not in variants else variants
        if not some:
            raise SystemExit(f"{name}: PyTorch has no samples of this name, or filters.py leaves it out")
        found += some
    return found


def run(name: str, limits: dict[str, int] | None, dtypes: Any = None) -> tuple[str, list[Failure], float]:
    """The failures of one entry, and the seconds they took."""
    begun = time.perf_counter()
    try:
        found = list(ENTRIES[name](limits).failures(*([dtypes] if dtypes else [])))
    except Exception as error:  # of the comparison itself: a sample that it cannot take
        found = [Failure(name, "raises", "-", f"tests/parity: {type(error).__name__}: {error}")]
    return name, found, time.perf_counter() - begun


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
    parser.add_argument(
        "--all", action="store_true", help="everything in the default selection, written down"
    )
    parser.add_argument("--update", action="store_true", help="the same for the names alone")
    parser.add_argument("--dtype", action="append", default=[], help="only this dtype")
    parser.add_argument("--aspect", action="append", default=[], choices=ASPECTS, help="only this aspect")
    parser.add_argument("--most", type=int, default=2, help="failures shown per op, aspect and dtype")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warptape.set_num_threads(1)
    if options.all or options.update:
        return update(list(ENTRIES) if options.all else chosen(options.names), options)
    dtypes = tuple(getattr(torch, name) for name in options.dtype)
    failed = 0
    for name in chosen(options.names):
        _, found, _ = run(name, {}, dtypes)
        found = [f for f in found if not options.aspect or f.aspect in options.aspect]
        show(found, options.aspect, options.most)
        print(f"{name}: {f'{len(found)} comparisons fail' if found else 'all right'}")
        failed += bool(found)
    return int(failed > 0)


def default_run(name: str) -> tuple[str, list[Failure], float]:
    return run(name, None)


def update(names: list[str], options: argparse.Namespace) -> int:
    """Runs the default selection of these; writes their lines of the list, and the table."""
    found: list[Failure] = []
    seconds: dict[str, float] = {}
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for name, failures, taken in pool.imap_unordered(default_run, names, chunksize=1):
            found += failures
            seconds[name] = taken
    found.sort(key=lambda f: (f.name, ASPECTS.index(f.aspect), f.dtype))
    show(found, options.aspect, options.most)
    others = {key: reason for key, reason in gate.read().items() if key[0] in ENTRIES.keys() - set(names)}
    gate.write(others | gate.reasons(found))
    RESULTS.write_text(json.dumps(counts(), indent=1) + "\n")
    compatibility.OUT.write_text(compatibility.text())
    longest = sorted(seconds, key=lambda name: -seconds[name])[:10]
    print("longest:", ", ".join(f"{name} {seconds[name]:.1f} s" for name in longest))
    return 0


def counts() -> list[dict[str, Any]]:
    """Of each of PyTorch's lists: entries, wholly right ones, and how many fail in each aspect."""
    kinds = {
        "op_db": [filters.full_name(entry) for entry in filters.entries()],
        "module_db": [entry.name for entry in modules.entries()],
        "optim_db": [optimizers.name_of(entry) for entry in optimizers.entries()],
    }
    rows = []
    for kind, names in kinds.items():
        own: dict[str, set[str]] = {name: set() for name in names}
        for name, aspect, _ in gate.read():
            if name in own:
                own[name].add(aspect)
        failing = {aspect: sum(aspect in of for of in own.values()) for aspect in ASPECTS}
        right = sum(not of for of in own.values())
        rows.append({"list": kind, "entries": len(own), "right": right, "failing": failing})
    return rows


if __name__ == "__main__":
    sys.exit(main())
