"""Compare warptape with the installed PyTorch on one GPU.

    python benchmarks/gpu.py                     the whole table (about two minutes on an H200)
    python benchmarks/gpu.py --rows gemm,gpt2    some lines of it
    python benchmarks/gpu.py --quick             tiny sizes and no peer, to see that all of it runs

Each library runs in a process of its own, by turns, --rounds times; the table has the medians. Memory-bound
rows show their share of what a large copy reached in the same run, rows of products TFLOP/s and their share
of the peak of GPUs that _gemm_rows.py knows, GPT-2 tokens/s.
Results go to --out as JSON with GPU, driver, commit and date, never from a --quick run nor from an emulated
device.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import statistics
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _gemm_rows import peak_of
from _gpu_rows import ROWS
from _harness import HERE, versions

LOSS_STEPS = 200
LOSS_TOLERANCE = 0.01  # of the peer's, at the end
# Column "first" of the targets: the share of a copy's bandwidth, and time against PyTorch eager.
MEMORY_TARGETS = {"forward": 0.75, "backward": 0.65, "step": 0.75}
ELEMENTWISE_TARGET = 0.85
PEER_TARGETS = {
    "gemm": 1.0,
    "gemm_ladder": 1.0,
    "attention": 1.0,
    "small_mlp": 0.6,
    "compiled": 1.0,
    "gpt2": 1.0,
}


def run_worker(
    library: str, names: list[str], scale: float, loss_steps: int, limit: float, lines: Path | None = None
) -> list[dict[str, Any]]:
    """What a process measured, and how it ended if not well; after `limit` seconds, what it had by then. Each
    result is appended to `lines` as it comes."""
    command = [
        sys.executable,
        str(HERE / "_gpu_rows.py"),
        library,
        ",".join(names),
        str(scale),
        str(loss_steps),
    ]
    results: list[dict[str, Any]] = []

    def keep(result: dict[str, Any]) -> None:
        results.append(result)
        if lines:
            with lines.open("a") as file:
                file.write(json.dumps({"library": library, **result}) + "\n")

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        killer = threading.Timer(limit, process.kill)
        killer.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.rstrip().endswith("}"):
                keep(json.loads(line))
        late = not killer.is_alive()
        killer.cancel()
    if process.returncode:
        how = f"took more than {limit:g} s" if late else f"ended with code {process.returncode}"
        keep({"row": "process", "variant": library, "error": how})
    return results


def collect(rounds: list[list[dict[str, Any]]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Medians over the rounds; an error of any of them stays."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for results in rounds:
        for result in results:
            entry = found.setdefault((result["row"], result["variant"]), {"times": []})
            entry.update({k: v for k, v in result.items() if k != "seconds"})
            if "seconds" in result:
                entry["times"].append(result["seconds"])
    for entry in found.values():
        if entry["times"]:
            entry["seconds"] = statistics.median(entry["times"])
    return found


def line_of(
    unit: str,
    key: tuple[str, str],
    mine: dict[str, Any],
    peer: dict[str, Any] | None,
    copy: float,
    device: str = "",
) -> Any:
    """One line of the table: figure, share or ratio, and whether the target is met."""
    row, variant = key
    line: dict[str, Any] = {"row": row, "variant": variant, "error": mine.get("error")}
    if "seconds" not in mine:
        return line
    rate = mine["work"] / mine["seconds"]
    line |= {"seconds": mine["seconds"], "rate": rate, "unit": unit}
    if peer and "seconds" in peer:
        line |= {"peer_seconds": peer["seconds"], "ratio": mine["seconds"] / peer["seconds"]}
    if unit == "flops" and (peak := peak_of(device, variant)):
        line["share"] = rate / peak
    if unit == "bytes":
        line["share"] = rate / copy
        line["target"] = ELEMENTWISE_TARGET if row == "elementwise" else MEMORY_TARGETS[variant]
        line["met"] = line["share"] >= line["target"]
    elif "ratio" in line:
        line["target"] = PEER_TARGETS[row]
        line["met"] = line["ratio"] <= line["target"]
    return line


def figure(line: dict[str, Any]) -> str:
    scale, name = {"bytes": (1e12, "TB/s"), "flops": (1e12, "TFLOP/s"), "tokens": (1, "tokens/s")}.get(
        line["unit"], (1, "calls/s")
    )
    return f"{line['rate'] / scale:,.2f} {name}" if scale > 1 else f"{line['rate']:,.0f} {name}"


def table(lines: list[dict[str, Any]]) -> str:
    out = [
        "| row | warptape | PyTorch | ratio of times | share of copy or peak | target | met |",
        "|" + " --- |" * 7,
    ]
    for line in lines:
        name = f"{line['row']} {line['variant']}".strip()
        if line.get("error"):
            out.append(f"| {name} | failed: {line['error']} | | | | | no |")
            continue
        peer = f"{line['peer_seconds'] * 1e3:.3g} ms" if "peer_seconds" in line else ""
        cells = [
            f"{line['seconds'] * 1e3:.3g} ms, {figure(line)}",
            peer,
            f"{line['ratio']:.2f}" if "ratio" in line else "",
            f"{line['share']:.0%}" if "share" in line else "",
            f"{line['target']:g}" if "target" in line else "",
            {True: "yes", False: "no"}.get(line.get("met"), ""),
        ]
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def compare_losses(mine: dict[str, Any], peer: dict[str, Any] | None) -> dict[str, Any]:
    """The end of both curves: means over the last tenth, and by how much they differ."""
    found: dict[str, Any] = {"error": mine.get("error")}
    tail = max(1, len(mine.get("losses", [])) // 10)
    if mine.get("losses"):
        found["warptape"] = statistics.mean(mine["losses"][-tail:])
    if peer and peer.get("losses"):
        found["torch"] = statistics.mean(peer["losses"][-tail:])
    if "warptape" in found and "torch" in found:
        found["difference"] = abs(found["warptape"] - found["torch"]) / found["torch"]
        found["met"] = found["difference"] <= LOSS_TOLERANCE
    return found


def report(about: dict[str, Any], rounds: dict[str, list[list[dict[str, Any]]]]) -> dict[str, Any]:
    """What was measured so far: a line for each row, PyTorch's times, and the losses."""
    mine, peer = (collect(rounds.get(library, [])) for library in ("warptape", "torch"))
    curves = compare_losses(mine.pop(("losses", ""), {}), peer.pop(("losses", ""), None))
    copy = mine.get(("elementwise", "copy"), {})
    bandwidth = copy["work"] / copy["seconds"] if "seconds" in copy else 4.3e12
    units = {row.name: row.unit for row in ROWS}
    lines = [
        line_of(units.get(k[0], "calls"), k, v, peer.get(k), bandwidth, about["gpu"]) for k, v in mine.items()
    ]
    extra = [
        {"row": k[0], "variant": k[1], "seconds": v["seconds"]} for k, v in peer.items() if "seconds" in v
    ]
    return {
        "machine": {**about, "copy_bytes_per_second": bandwidth},
        "lines": lines,
        "peer": extra,
        "losses": curves,
    }


def peer_there() -> bool:
    """Whether PyTorch with a GPU is installed."""
    if importlib.util.find_spec("torch") is None:
        return False
    code = "import torch; raise SystemExit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def machine() -> dict[str, Any]:
    """GPU, driver, commit and date."""
    import warptape

    properties = warptape.cuda.get_device_properties(0)
    found = {
        "gpu": properties.name,
        "multi_processor_count": properties.multi_processor_count,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    smi = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found["driver"] = subprocess.run(smi, capture_output=True, text=True, check=True).stdout.split("\n")[
            0
        ]
    except (OSError, subprocess.CalledProcessError):
        found["driver"] = "unknown"
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(row.name for row in ROWS), help="comma-separated names")
    parser.add_argument("--peer-rows", help="those that PyTorch runs, too (default: all)")
    parser.add_argument("--lines", type=Path, help="file that gets each result as JSON as it comes")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each library")
    parser.add_argument("--no-losses", action="store_true", help="leave the curves of 200 steps out")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, no peer; keeps nothing")
    parser.add_argument("--commit", help="the commit that was built, where there is no git")
    parser.add_argument("--limit", type=float, default=100, help="seconds of a library's turn")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu.json")
    options = parser.parse_args()
    unknown = set(options.rows.split(",")) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"--rows: no such row: {', '.join(sorted(unknown))}")
    return options


def main() -> int:
    options = parse()
    import warptape

    if not warptape.cuda.is_available():
        print(
            "gpu.py: warptape sees no CUDA device; `python -m warptape.doctor` says what is missing",
            file=sys.stderr,
        )
        return 2
    about = machine()
    emulated = "emulated" in about["gpu"].lower()
    about |= {"versions": versions()}
    about["commit"] = options.commit or about["versions"]["commit"]
    names = options.rows.split(",")
    scale = 2.0**-10 if options.quick else 1.0
    steps = 0 if options.no_losses else 2 if options.quick else LOSS_STEPS
    libraries = ["warptape"] + (["torch"] if not options.quick and peer_there() else [])
    rounds: dict[str, list[list[dict[str, Any]]]] = {library: [] for library in libraries}
    keeps = not options.quick and not emulated
    for turn in range(1 if options.quick else options.rounds):
        for library in libraries:
            rows = options.peer_rows.split(",") if library == "torch" and options.peer_rows else names
            turn_steps = 0 if turn else steps
            rounds[library].append(run_worker(library, rows, scale, turn_steps, options.limit, options.lines))
            found = report(about, rounds)
            if keeps:  # after each: a run that is cut short has what it measured
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(found, indent=1) + "\n")
                options.out.with_suffix(".md").write_text(table(found["lines"]) + "\n")
    print(table(found["lines"]))
    print(f"losses {found['losses']}; {about}")
    if not keeps:
        print("nothing kept: " + ("an emulated device" if emulated else "a quick run"))
    return 1 if any(line.get("error") for line in found["lines"]) or found["losses"].get("error") else 0


if __name__ == "__main__":
    raise SystemExit(main())
