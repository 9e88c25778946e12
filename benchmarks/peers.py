"""Compare frozen programs with PyTorch, ONNX Runtime and OpenVINO on the CPU: same weights, one run.

    python benchmarks/peers.py                                        all networks
    python benchmarks/peers.py --rows bert_base_1x128 --rounds 31
    python benchmarks/peers.py --torch-python PYTHON --peer-python PYTHON

Each runtime has a process of its own; in a round they take turns. Runtimes that are not installed are left
out and named (pip install onnxruntime openvino); --torch-python and --peer-python name the Pythons of other
environments that have them. Decoders beside llama.cpp, whose build and instructions are printed there, are
rows of benchmarks/inference.py. A ratio is time(warptape) / time(peer), of medians; `bound` is its upper
95 % bound by bootstrap over the rounds; `of peak` is the share of the product of matrices that runs fastest
here. Before it is timed, what each runtime computes is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
from _harness import Measured, RowFailedError, Worker, machine, measure, ratio_and_bound, versions
from _peer_rows import NETWORKS, ROWS
from _roofline import peak_flops

TOLERANCE = 2e-3  # of the largest value: sums run in other orders
PEERS = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


def version_in(python: str, module: str) -> str | None:
    """The module's version in that Python, or None where it is not there."""
    program = f"from importlib.metadata import version; import {module}; print(version({module!r}))"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def difference(results: dict[str, list[float]], peer: str) -> float:
    """The largest difference from warptape's result, of its largest value."""
    ours, theirs = np.asarray(results["warptape"]), np.asarray(results[peer])
    return float(np.abs(ours - theirs).max() / np.abs(ours).max())


def lines_of(measured: Measured, gflop: float, peak: float) -> list[str]:
    """A line of the table for each peer."""
    if measured.error:
        return [f"| {measured.name} | failed: {measured.error} | | | | |"]
    medians, out = measured.medians(), []
    share = gflop * 1e9 / medians["warptape"] / peak
    for peer in [name for name in PEERS if name in medians]:
        pair = {"warptape": measured.seconds["warptape"], "torch": measured.seconds[peer]}
        ratio, bound = ratio_and_bound([Measured(measured.name, pair)])
        apart = difference(measured.results, peer)
        wrong = "" if apart <= TOLERANCE else f" RESULTS DIFFER by {apart:.1e}"
        out.append(
            f"| {measured.name} | {PEERS[peer]}{wrong} | {ratio:.2f} | {bound:.2f} | "
            f"{medians['warptape'] * 1e3:.2f} ms, {medians[peer] * 1e3:.2f} ms | {share:.0%} |"
        )
    return out


HEAD = "| network | peer | ratio | bound | warptape, peer | of peak |\n| --- | --- | --- | --- | --- | --- |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", help="networks, separated by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--torch-python", default=sys.executable)
    parser.add_argument("--peer-python", default=sys.executable)
    options = parser.parse_args()
    known = [row.name for row in ROWS]
    options.rows = options.rows.split(",") if options.rows else known
    if unknown := [name for name in options.rows if name not in known]:
        parser.error(f"no network named {', '.join(unknown)}; there are {', '.join(known)}")
    return options


def main() -> int:
    options = arguments()
    pythons = {"warptape": sys.executable, "torch": options.torch_python}
    pythons |= dict.fromkeys(("onnxruntime", "openvino"), options.peer_python)
    found = {name: version_in(pythons[name], name) for name in PEERS}
    print(json.dumps({"machine": machine(), "versions": {**versions(), **found}, "threads": options.threads}))
    for name in [name for name, version in found.items() if version is None]:
        print(f"{PEERS[name]}: not installed in {pythons[name]}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WARPTAPE_PEERS_FOLDER"] = folder
        workers: dict[str, Worker] = {}
        try:
            # warptape first: it writes the files that the others read.
            for name in ("warptape", *(name for name, version in found.items() if version)):
                workers[name] = Worker(name, "_peer_rows", pythons[name])
            peak = peak_flops(options.threads)
            print(f"peak: {peak / 1e9:.0f} GFLOP/s\n\n{HEAD}")
            failed = run(options, workers, peak)
        except RowFailedError as error:
            print(error)
            return 1
        finally:
            for worker in workers.values():
                worker.close()
    return int(failed)


def run(options: argparse.Namespace, workers: dict[str, Any], peak: float) -> bool:
    """Prints the table; whether a row failed or a result differs."""
    failed = False
    for row, network in zip(ROWS, NETWORKS, strict=True):
        if row.name not in options.rows:
            continue
        measured = measure(row, workers, options.rounds, 0.05, options.threads)
        lines = lines_of(measured, network.gflop, peak)
        failed |= bool(measured.error) or any("DIFFER" in line for line in lines)
        print("\n".join(lines), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
