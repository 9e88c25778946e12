"""Runs public PyTorch programs, as they are, under PyTorch and under `python -m warptape.torch`.

    python benchmarks/programs/run.py CLONES [--compiled] [--out FILE] [--rounds N] [program ..]

CLONES is a folder with clones of the repositories that _programs.py names; none is part of this project. Each
program starts from the same weights in both, on data that its driver makes, with sizes that fit a small
machine and with dropout off (the libraries drop other elements), and takes 20 steps, a step being a call of
backward(). Printed are the largest relative difference of a loss (in brackets that of PyTorch with itself,
where each weight begins one unit in the last place off: a program may be sensitive) and warptape's time per
step over PyTorch's: medians of the steps after the third, the smaller one of N rounds in turns. With
--threads 1 times are CPU times, which a busy machine changes less. With --compiled the other side is the same
program whose modules are called through torch.compile: losses must be equal to the bit. It takes 40 steps, of
which the first 20 do not count: which of its ways a compiled function takes is measured in them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from _programs import PROGRAMS  # noqa: E402

LIBRARIES = {"torch": [sys.executable], "warptape": [sys.executable, "-m", "warptape.torch"]}
LIBRARIES |= dict.fromkeys(
    ("plain", "compiled"), LIBRARIES["warptape"]
)  # calls with and without torch.compile


def run_one(library: str, name: str, clones: Path, work: Path, threads: int, **more: str) -> dict[str, Any]:
    """One run of one program: its losses and the seconds of its steps, or `error`."""
    environ = {**os.environ, **more, "MPLBACKEND": "Agg", "TQDM_DISABLE": "1", "PYTHONHASHSEED": "0"}
    environ |= {"CALLS": library} if library in ("plain", "compiled") else {}
    if threads:
        environ |= {"OMP_NUM_THREADS": str(threads), "WARPTAPE_NUM_THREADS": str(threads)}
    ranks = PROGRAMS[name].ranks
    if ranks > 1:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        environ |= {"LOCAL_WORLD_SIZE": str(ranks)}
    with ThreadPoolExecutor(ranks) as pool:
        found = list(
            pool.map(lambda rank: run_rank(library, name, clones, work, environ, rank), range(ranks))
        )
    for one in found:
        if "error" in one:
            return one
    losses = [loss for one in found for loss in one["losses"]]
    return {"losses": losses, "seconds": max(one["seconds"] for one in found)}


def run_rank(
    library: str, name: str, clones: Path, work: Path, environ: dict[str, str], rank: int
) -> dict[str, Any]:
    """One process of one run."""
    out = work / f"{library}.{rank}.json"
    command = [*LIBRARIES[library], str(HERE / "_child.py"), name, str(clones), str(work), str(out)]
    if "WORLD_SIZE" in environ:
        environ = {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=work, timeout=900)
    if not out.exists():
        return {"error": (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
    found = json.loads(out.read_text())
    out.unlink()
    return found


def largest(expected: list[float], found: list[float]) -> float:
    """The largest relative difference of two runs' losses."""
    return max(abs(a - b) / max(abs(a), 1e-12) for a, b in zip(expected, found, strict=True))


def compare(name: str, clones: Path, rounds: int, threads: int) -> dict[str, Any]:
    """A row of the table."""
    row: dict[str, Any] = {"program": name, "title": PROGRAMS[name].title, "threads": threads}
    row["date"] = date.today().isoformat()
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            losses = {}
            for library in ("torch", "warptape"):
                found = run_one(library, name, clones, Path(folder), threads)
                if "error" in found:
                    return {**row, "error": f"{library}: {found['error']}"}
                losses[library] = found["losses"]
                best[library] = min(best.get(library, found["seconds"]), found["seconds"])
    with tempfile.TemporaryDirectory() as folder:
        moved = run_one("torch", name, clones, Path(folder), threads, PERTURB="1").get("losses", [])
    row |= {
        "difference": largest(losses["torch"], losses["warptape"]),
        "own": largest(losses["torch"], moved),
    }
    row |= {"steps": len(losses["torch"]), "ratio": best["warptape"] / best["torch"]}
    return row | {"torch_ms": best["torch"] * 1e3, "warptape_ms": best["warptape"] * 1e3}


def compare_compiled(name: str, clones: Path, rounds: int, threads: int) -> dict[str, Any]:
    """A row beside this runtime's own eager mode: whether all losses are equal to the bit, and the times."""
    best: dict[str, float] = {}
    losses = {}
    with tempfile.TemporaryDirectory() as folder:
        run_one("torch", name, clones, Path(folder), threads)  # leaves the weights
        for _ in range(rounds):
            for library in ("plain", "compiled"):
                found = run_one(library, name, clones, Path(folder), threads)
                if "error" in found:
                    return {"program": name, "error": f"{library}: {found['error']}"}
                losses[library] = found["losses"]
                best[library] = min(best.get(library, found["seconds"]), found["seconds"])
    return {
        "program": name,
        "title": PROGRAMS[name].title,
        "threads": threads,
        "equal": losses["plain"] == losses["compiled"],
        "ratio": best["compiled"] / best["plain"],
        "compiled_ms": best["compiled"] * 1e3,
        "eager_ms": best["plain"] * 1e3,
    }


def text_of(row: dict[str, Any]) -> str:
    """A row as a line."""
    if "error" in row:
        return f"{row['program']:24} {row['error'][:120]}"
    if "equal" in row:
        same = "equal losses" if row["equal"] else "OTHER LOSSES"
        times = f"{row['compiled_ms']:9.2f} ms {row['eager_ms']:9.2f} ms"
        return f"{row['program']:24} {same}  {row['ratio']:.2f}  {times}"
    times = f"{row['warptape_ms']:9.2f} ms {row['torch_ms']:9.2f} ms"
    found = f"{row['steps']:3} steps  {row['difference']:.1e} ({row['own']:.1e})"
    return f"{row['program']:24} {found}  {row['ratio']:.2f}  {times}"


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("clones", type=Path, help="a folder with clones of the repositories")
    parser.add_argument("programs", nargs="*", help=f"some of: {', '.join(PROGRAMS)}")
    parser.add_argument("--rounds", type=int, default=2, help="runs in each library, by turns")
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        help="threads of each library (0: its default); with 1, CPU time counts",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="modules in torch.compile beside the same program without it, both in warptape",
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the rows; others that it has stay")
    args = parser.parse_args()
    rows = json.loads(args.out.read_text()) if args.out and args.out.exists() else []
    bad = 0
    for name in args.programs or PROGRAMS:
        one = compare_compiled if args.compiled else compare
        row = one(name, args.clones.resolve(), args.rounds, args.threads)
        same = row.get("difference", 0) <= max(1e-4, 4 * row.get("own", 0))
        bad += "error" in row or not row.get("equal", True) or not same
        print(text_of(row), flush=True)
        rows = [r for r in rows if r["program"] != name] + [row]
        if args.out:
            order = {name: i for i, name in enumerate(PROGRAMS)}
            rows.sort(key=lambda r: order.get(r["program"], len(order)))
            args.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
