"""Compare loading a checkpoint with reading its files, and what a step waits for a save with copying memory.

    python benchmarks/checkpoint.py               the whole table (a minute or two, 4 GiB of disk)
    python benchmarks/checkpoint.py --quick       one round, keeps nothing

The files lie in the page cache. The other side of a load is a loop of `readinto` in blocks as large as those
of a checkpoint: once into memory as large as the files, which a load fills too, and once into one block again
and again, which then stays in the processor's caches. Both sides take turns. Results are kept in
benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import warptape as wt
import warptape.distributed.checkpoint as dcp
from warptape import nn, optim
from warptape.distributed.checkpoint.layout import BLOCK

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from _harness import LIBRARIES, Measured, machine, ratio_and_bound, versions  # noqa: E402

WIDTH, LAYERS = 2048, 64  # 16 MiB each, 1 GiB together
LOAD_TARGET, WAIT_TARGET = 1 / 0.8, 1.25  # of the other side's time, at most


def model_of(layers: int) -> nn.Module:
    return nn.ModuleDict({f"layer{i}": nn.Linear(WIDTH, WIDTH, bias=False) for i in range(layers)})


def state_of(kind: str) -> dict[str, Any]:
    """About 1 GiB: a model, or a model of a third of that beside AdamW's state."""
    if kind == "model":
        return {"model": model_of(LAYERS)}
    model = model_of(LAYERS // 3)
    optimizer = optim.AdamW(model.parameters())
    for p in model.parameters():
        p.grad = wt.zeros_like(p)
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


class Reader:
    """Reads the shards of a checkpoint, each thread its share of the blocks."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.files = [(path, path.stat().st_size) for path in sorted(folder.glob("*.safetensors"))]
        self.memory = memoryview(np.zeros(sum(size for _, size in self.files), np.uint8))
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads)

    def __call__(self, whole: bool) -> None:
        """Into memory of the files' size if `whole`, else always into the same blocks."""
        list(self.pool.map(self._share, range(self.threads), [whole] * self.threads))

    def _share(self, thread: int, whole: bool) -> None:
        own, base = self.memory[thread * BLOCK : (thread + 1) * BLOCK], 0
        for path, size in self.files:
            with open(path, "rb", buffering=0) as file:
                for at in range(thread * BLOCK, size, self.threads * BLOCK):
                    file.seek(at)
                    file.readinto(self.memory[base + at : base + min(at + BLOCK, size)] if whole else own)
            base += size


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_load(folder: Path, kind: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round, by what was done."""
    path = folder / kind
    state = state_of(kind)
    dcp.save(state, checkpoint_id=path)
    readers = {threads: Reader(path, threads) for threads in sorted({1, machine()["cores"]})}
    works: dict[str, Callable[[], Any]] = {"load": lambda: dcp.load(state, checkpoint_id=path)}
    for threads, reader in readers.items():
        works[f"read into memory, {threads}"] = lambda reader=reader: reader(True)
        works[f"read into one block, {threads}"] = lambda reader=reader: reader(False)
    for work in works.values():
        work()
    found: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name in list(works) if number % 2 else reversed(works):
            found[name].append(timed(works[name]))
    return found


def measure_save(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of the call of async_save, of a memcpy of the same bytes, and till the checkpoint is there."""
    state = state_of("model")
    source = np.ones(LAYERS * WIDTH * WIDTH, np.float32)
    into = np.zeros_like(source)
    found: dict[str, list[float]] = {"call": [], "memcpy": [], "whole": []}
    for _ in range(rounds + 1):
        found["memcpy"].append(timed(lambda: np.copyto(into, source)))
        start = time.perf_counter()
        future = dcp.async_save(state, checkpoint_id=folder / "asynchronous")
        found["call"].append(time.perf_counter() - start)
        future.result()
        found["whole"].append(time.perf_counter() - start)
    first = found["call"].pop(0)
    return {**{name: times[-rounds:] for name, times in found.items()}, "first call": [first]}


def row(what: str, ours: list[float], other: list[float], limit: float) -> str:
    ratio, bound = ratio_and_bound([Measured(what, dict(zip(LIBRARIES, (ours, other), strict=True)))])
    cells = [what, *(f"{1e3 * np.median(times):.0f} ms" for times in (ours, other))]
    cells += [f"{number:.2f}" for number in (ratio, bound, limit)]
    rate = LAYERS * WIDTH * WIDTH * 4 / 1e9 / np.median(ours)
    return f"| {' | '.join(cells)} | {'yes' if bound <= limit else 'no'} | {rate:.1f} GB/s |"


def table(result: dict[str, Any]) -> str:
    lines = [
        "| 1 GiB | time | other | ratio | bound | target | met | rate |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind, title in (("model", "load of a model"), ("training", "load of a model and AdamW")):
        found = result["load"][kind]
        for name, times in found.items():
            if name != "load":
                threads = " thread" if name.endswith(" 1") else " threads"
                lines.append(row(f"{title}; {name}{threads}", found["load"], times, LOAD_TARGET))
    save = result["save"]
    lines.append(row("call of async_save; memcpy", save["call"], save["memcpy"], WAIT_TARGET))
    lines.append("")
    lines.append(
        f"The first call of async_save takes {1e3 * save['first call'][0]:.0f} ms. "
        f"The checkpoint is on the disk after {np.median(save['whole']):.1f} s."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, prints the table and keeps it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=31, help="of loads; a third as many saves (default 31)")
    parser.add_argument("--folder", help="where the files lie while it runs (default: a temporary one)")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    result: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        result["load"] = {kind: measure_load(folder, kind, rounds) for kind in ("model", "training")}
        result["save"] = measure_save(folder, max(1, rounds // 3))
    text = table(result)
    print(text)
    if not options.quick:
        folder = HERE / "results"
        (folder / "checkpoint.json").write_text(json.dumps(result, indent=1) + "\n")
        (folder / "checkpoint.md").write_text(
            "# Checkpoints\n\nWritten by `python benchmarks/checkpoint.py`; ratio: time over the other's.\n\n"
            f"{text}\n{result['at']}, {result['machine']}, {result['versions']}\n"
        )


if __name__ == "__main__":
    main()
