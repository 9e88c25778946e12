"""Compare DataLoader's worker processes with those of the installed PyTorch.

    python benchmarks/loader.py            the whole table (about fifteen minutes)
    python benchmarks/loader.py --quick    three rounds, keeps nothing

A figure is the time of one pass over the data set, in which the main process reads every byte by NumPy. Both
libraries take turns, as in benchmarks/cpu.py, and results are kept in benchmarks/results.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _cpu_rows import Group, Row
from _harness import HERE, LIBRARIES, Worker, machine, measure, versions


class Items:
    """A data set of `count` items, whose tensors are made before the workers are."""

    def __init__(self, count: int, item: Callable[[int], Any]) -> None:
        self.count, self.item = count, item

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


def digits(lib: Any) -> dict[str, Any]:
    images, labels = lib.rand(1797, 1, 8, 8), lib.arange(1797)
    return {
        "dataset": Items(1797, lambda i: (images[i], labels[i])),
        "batch_size": 64,
        "shuffle": True,
    }


def photos(lib: Any) -> dict[str, Any]:
    images = lib.rand(32, 3, 224, 224)
    return {"dataset": Items(256, lambda i: (images[i % 32], i)), "batch_size": 32}


def lists(lib: Any) -> dict[str, Any]:
    values = lib.rand(1000)
    return {
        "dataset": Items(1000, lambda i: values[: 1 + 37 * i % 1000].clone()),
        "batch_size": 32,
        "collate_fn": list,
    }


def read(batches: Iterator[Any]) -> float:
    return sum(float(tensor.numpy().sum()) for batch in batches for tensor in batch)


def passes(options: Callable[[Any], dict[str, Any]], workers: int, persistent: bool) -> Callable[[Any], Any]:
    def build(lib: Any) -> Callable[[], Any]:
        import importlib

        data = importlib.import_module(lib.__name__ + ".utils.data")
        loader = data.DataLoader(num_workers=workers, persistent_workers=persistent, **options(lib))
        return lambda: read(iter(loader))

    return build


def first_batch(lib: Any) -> Callable[[], Any]:
    import importlib

    data = importlib.import_module(lib.__name__ + ".utils.data")
    loader = data.DataLoader(num_workers=1, **digits(lib))
    return lambda: next(iter(loader))


KINDS = {
    "digits": (digits, "1797 items of 64 floats, batches of 64"),
    "photos": (photos, "256 images of 3x224x224 floats, batches of 32"),
    "lists": (lists, "1000 tensors of 1 to 1000 floats, lists of 32"),
}
GROUPS, ROWS = (
    [Group("first", "start of one worker, first batch, end", 1.0)],
    [Row("first", "first", first_batch)],
)
for kind, (options, title) in KINDS.items():
    for count in (1, 2):
        for stay in (False, True):
            name = f"{kind}_{count}{'_persistent' if stay else ''}"
            many = f"{count} worker{'s' if count > 1 else ''}{' that stay' if stay else ''}"
            GROUPS.append(Group(name, f"{title}; {many}", 1.0))
            ROWS.append(Row(name, name, passes(options, count, stay), calls=1))


def main() -> int:
    from cpu import keep, markdown, summary

    parser = argparse.ArgumentParser(description="Compare DataLoader's workers with PyTorch's.")
    parser.add_argument("--rows", help="lines of the table, by name, separated by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="3 rounds, keeps nothing")
    parser.add_argument("--rounds", type=int, help="rounds (default 31)")
    given = parser.parse_args()
    rounds = given.rounds or (3 if given.quick else 31)
    names = given.rows.split(",") if given.rows else [row.name for row in ROWS]
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    run = {"date": date, "machine": machine(), "versions": versions(), "rounds": rounds}
    lines = []
    for group, row in zip(GROUPS, ROWS):
        if row.name not in names:
            continue
        libraries = {library: Worker(library, "loader") for library in LIBRARIES}
        try:
            measured = measure(row, libraries, rounds, 0.01, 1)
        finally:
            for library in libraries.values():
                library.close()
        lines.append({**summary(group, [measured]), "run": run})
        print(markdown(lines[-1:]).split("\n", 2)[2].strip(), flush=True)
    if not given.quick:
        keep(lines, HERE / "results", GROUPS, "loader", "warptape's DataLoader workers against PyTorch's")
    return 1 if any(line["failed"] for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
