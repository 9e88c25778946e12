"""Compare compiled functions with eager mode and with the installed PyTorch's torch.compile.

    python benchmarks/compile.py                      the whole table (PyTorch compiles for some minutes)
    python benchmarks/compile.py --rows chain[16384],small_step
    python benchmarks/compile.py --rounds 5           fewer rounds
    python benchmarks/compile.py --memory             the memory of training steps, of warptape alone
    python benchmarks/compile.py --lengths            first calls of 100 sequence lengths, of warptape alone

Three processes take turns, round by round: warptape eager, warptape compiled, PyTorch compiled. Ratios are
of medians; the bound is the upper 95 % bound by bootstrap. `first call` is the time of the first call of the
compiled work with its compilation. The result is kept in benchmarks/results/compile.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from _compile_rows import GPT_STEPS, PEAK_TARGET, ROWS, TARGETS
from _harness import HERE, PAUSE_SECONDS, RowFailedError, Worker, machine, versions

SIDES = {
    "eager": ("warptape", ""),
    "compiled": ("warptape", " compiled"),
    "peer": ("torch", " compiled"),
}


def calls_for(worker: Worker, round_seconds: float) -> int:
    """As many calls as fill a round."""
    for calls in (1, 10, 100, 1000, 10000):
        spent = worker.ask(time=calls)["seconds"]
        if spent > round_seconds / 10:
            break
    return max(1, round(calls * round_seconds / spent))


def measure(name: str, rounds: int, round_seconds: float, threads: int) -> dict[str, Any]:
    """Times of the three sides in seconds a call, and those of the first calls."""
    workers = {side: Worker(library, "_compile_rows") for side, (library, _) in SIDES.items()}
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    first: dict[str, float] = {}
    try:
        for side, worker in workers.items():
            worker.ask(prepare=name + SIDES[side][1], threads=threads)
            begin = time.perf_counter()
            worker.ask(time=0)  # one call, before the clock starts
            first[side] = time.perf_counter() - begin
        calls = max(calls_for(worker, round_seconds) for worker in workers.values())
        for _ in range(rounds):
            for side, worker in workers.items():
                time.sleep(PAUSE_SECONDS)
                seconds[side].append(worker.ask(time=calls)["seconds"] / calls)
    except RowFailedError as error:
        return {"name": name, "error": str(error)}
    finally:
        for worker in workers.values():
            worker.close()
    return {"name": name, "target": TARGETS[name], "seconds": seconds, "first_call": first}


def ratio(row: dict[str, Any], other: str) -> tuple[float, float]:
    """Of medians, compiled over `other`, and the upper 95 % bound."""
    ours, theirs = (np.asarray(row["seconds"][side]) for side in ("compiled", other))
    drawn = np.random.default_rng(0).integers(len(ours), size=(2000, len(ours)))
    all_ratios = np.median(ours[drawn], axis=1) / np.median(theirs[drawn], axis=1)
    return float(np.median(ours) / np.median(theirs)), float(np.quantile(all_ratios, 0.95))


def markdown(rows: list[dict[str, Any]]) -> str:
    text = [
        "| work | compiled | of own eager | of PyTorch's torch.compile | bound | target | first call "
        "| PyTorch's first call |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if "error" in row:
            text.append(f"| {row['name']} | {row['error']} | | | | | | |")
            continue
        to_peer, bound = ratio(row, "peer")
        text.append(
            f"| {row['name']} | {1e3 * float(np.median(row['seconds']['compiled'])):.4g} ms "
            f"| {ratio(row, 'eager')[0]:.3f} | {to_peer:.3f} | {bound:.3f} | {row['target']} "
            f"| {row['first_call']['compiled']:.3f} s | {row['first_call']['peer']:.1f} s |"
        )
    return "\n".join(text) + "\n"


def compare_memory(threads: int) -> str:
    """The most bytes in use in a training step as a whole, eagerly and compiled."""
    text = ["| work | eager | compiled | of own eager | target |", "| --- | --- | --- | --- | --- |"]
    for name in GPT_STEPS:
        peak = {}
        for side in ("eager", "compiled"):
            worker = Worker("warptape", "_compile_rows")
            try:
                worker.ask(prepare=name + SIDES[side][1], threads=threads)
                worker.ask(time=3)
                peak[side] = worker.ask(peak=3)["bytes"]
            finally:
                worker.close()
        share = peak["compiled"] / peak["eager"]
        text.append(
            f"| {name} | {peak['eager'] / 1e6:.1f} MB | {peak['compiled'] / 1e6:.1f} MB | {share:.3f} "
            f"| {PEAK_TARGET} |"
        )
    return "\n".join(text) + "\n"


def compare_lengths(threads: int) -> str:
    """First calls of a compiled step with sequences of 100 lengths, beside eager ones."""
    import warptape
    from _compile_rows import Lengths

    warptape.set_num_threads(threads)
    eager, compiled = Lengths(warptape), Lengths(warptape)
    step = warptape.compile(compiled)
    step.region.adaptive = False  # else steps in which there is little to gain run eagerly

    def seconds(work: Any, number: int) -> float:
        begin = time.perf_counter()
        work(number).item()
        return time.perf_counter() - begin

    seconds(eager, 0), seconds(step, 0)
    numbers = range(1, len(eager.tokens))
    usual = [min(seconds(eager, i) for _ in range(3)) for i in numbers]
    first = [seconds(step, i) for i in numbers]
    stalls = [a - b for a, b in zip(first, usual, strict=True)]
    found = step.explain()
    return (
        f"{len(stalls)} lengths: {sum(stalls):.3f} s over eager in all, at most {1e3 * max(stalls):.1f} ms; "
        f"{found.graph_count} programs made in {1e3 * found.compile_seconds:.1f} ms\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(TARGETS))
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--round-seconds", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--lengths", action="store_true")
    given = parser.parse_args()
    assert {row.name.removesuffix(" compiled") for row in ROWS} == {*TARGETS, *GPT_STEPS}
    if given.memory or given.lengths:
        print((compare_memory if given.memory else compare_lengths)(given.threads), end="")
        return
    rows = []
    for name in given.rows.split(","):
        rows.append(measure(name, given.rounds, given.round_seconds, given.threads))
        print(markdown(rows).splitlines()[-1], flush=True)
    about = {"machine": machine(), "versions": versions(), "threads": given.threads, "rows": rows}
    (given.out / "compile.json").write_text(json.dumps(about, indent=1) + "\n")
    (given.out / "compile.md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
