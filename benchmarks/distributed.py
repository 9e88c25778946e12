"""Compare the collectives and the launcher with PyTorch's gloo and with Open MPI, on the CPU of one host.

    python benchmarks/distributed.py              the whole table (about eight minutes)
    python benchmarks/distributed.py --quick      one round, keeps nothing

Jobs of the libraries take turns; a figure is the median over rounds. PyTorch is started by torchrun, Open MPI
by mpirun with mpi4py; what is not installed is left out. Results are kept in benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from _harness import machine, versions  # noqa: E402

RANK = str(HERE / "_distributed_rank.py")
LAUNCHERS = {
    "warptape": [sys.executable, "-m", "warptape.distributed.run", "--nproc-per-node"],
    "torch": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"],
    "mpi": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"],
}


def available() -> list[str]:
    """The libraries that can be measured here, ours first."""
    from importlib.util import find_spec

    found = ["warptape"]
    if find_spec("torch"):
        found.append("torch")
    if find_spec("mpi4py") and shutil.which("mpirun"):
        found.append("mpi")
    return found


def run(library: str, ranks: int, what: str, dtype: str) -> tuple[float, dict[str, Any]]:
    """(when the launcher was started, what rank 0 printed)."""
    command = [*LAUNCHERS[library], str(ranks)]
    if library == "mpi":
        command.append(sys.executable)
    start = time.time()
    done = subprocess.run(
        [*command, RANK, library, what, dtype],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{library} {what}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return start, json.loads(lines[0])


def measure_all_reduce(rounds: int, dtype: str) -> dict[str, dict[str, float]]:
    """Median seconds by library and bytes, two ranks."""
    libraries = [name for name in available() if name != "mpi" or dtype == "float32"]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in libraries}
    for _ in range(rounds):
        for name in libraries:
            found[name].append(run(name, 2, "all_reduce", dtype)[1]["seconds"])
    return {
        name: {size: median(each[size] for each in many) for size in many[0]} for name, many in found.items()
    }


def measure_start(rounds: int) -> dict[str, float]:
    """Median seconds from the launcher's start to the end of the first collective, four ranks."""
    libraries = [name for name in available() if name != "mpi"]
    found: dict[str, list[float]] = {name: [] for name in libraries}
    for _ in range(rounds):
        for name in libraries:
            began, result = run(name, 4, "start", "float32")
            found[name].append(result["at"] - began)
    return {name: median(times) for name, times in found.items()}


def measure_ddp(rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of a GPT step on two ranks of one thread: see _distributed_rank.ddp."""
    libraries = [name for name in available() if name != "mpi"]
    found: dict[str, dict[str, list[float]]] = {name: {} for name in libraries}
    for _ in range(rounds):
        for name in libraries:
            for way, times in run(name, 2, "ddp", "float32")[1]["seconds"].items():
                found[name].setdefault(way, []).extend(times)
    return {name: {way: median(times) for way, times in ways.items()} for name, ways in found.items()}


def size_name(size: int) -> str:
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size // scale} {unit}"
    return f"{size} B"


def seconds_name(t: float) -> str:
    return f"{t * 1e3:.3g} ms" if t >= 1e-3 else f"{t * 1e6:.3g} us"


def table(result: dict[str, Any]) -> str:
    lines = [
        "| all_reduce, 2 ranks | warptape | gloo | ratio | Open MPI | ratio | target | met |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for dtype, by_library in result["all_reduce"].items():
        for size, ours in by_library["warptape"].items():
            bytes_, cells, met = int(size), [], []
            for name in ("torch", "mpi"):
                theirs = by_library.get(name, {}).get(size)
                cells += ["-", "-"] if theirs is None else [seconds_name(theirs), f"{ours / theirs:.3f}"]
                limit = {"torch": 0.1 if bytes_ == 8 else 0.2 if bytes_ < 1 << 20 else 9e9, "mpi": 1.0}[name]
                if theirs is not None and not (name == "mpi" and bytes_ < 1 << 16):
                    met.append(ours / theirs <= limit)
            target = "0.1 of gloo" if bytes_ == 8 else "0.2 of gloo" if bytes_ < 1 << 20 else ""
            if bytes_ >= 1 << 16 and size in by_library.get("mpi", {}):
                target += (", " if target else "") + "1.0 of Open MPI"
            lines.append(
                f"| {dtype}, {size_name(bytes_)} | {seconds_name(ours)} | {' | '.join(cells)} | {target} "
                f"| {('yes' if all(met) else 'no') if met else ''} |"
            )
    if result["start"]:
        lines += ["", "| start to first collective, 4 ranks | seconds |", "| --- | --- |"]
        lines += [f"| {name} | {t:.2f} |" for name, t in result["start"].items()]
    if result["ddp"]:
        lines += [
            "",
            "| DDP, step of examples/train_gpt.py, 2 ranks x 1 thread | 1 rank | 2 apart | 2 together "
            "| throughput | of apart | target | met |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
    for name, ways in result["ddp"].items():
        alone, apart, together = (ways[way] for way in ("alone", "apart", "together"))
        gain = 2 * alone / together
        target = f"1.7 | {'yes' if gain >= 1.7 else 'no'}" if name == "warptape" else " | "
        lines.append(
            f"| {name} | {seconds_name(alone)} | {seconds_name(apart)} | {seconds_name(together)} "
            f"| {gain:.2f} | {apart / together:.2f} | {target} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, prints the table and keeps it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    result: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "all_reduce": {dtype: measure_all_reduce(rounds, dtype) for dtype in ("float32", "bfloat16")},
        "start": measure_start(rounds),
        "ddp": measure_ddp(rounds),
    }
    text = table(result)
    print(text)
    if not options.quick:
        folder = HERE / "results"
        (folder / "distributed.json").write_text(json.dumps(result, indent=1) + "\n")
        (folder / "distributed.md").write_text(
            "# Collectives and launcher on one host\n\nWritten by `python benchmarks/distributed.py`.\n\n"
            f"{text}\n{result['at']}, {result['machine']}, {result['versions']}\n"
        )


if __name__ == "__main__":
    main()
