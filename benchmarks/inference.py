"""Measure the inference engine (decoding, prompts, many clients) beside transformers, llama.cpp and vLLM.

    python benchmarks/inference.py                      all rows (the 8B rows need 20 GB of memory)
    python benchmarks/inference.py --rows "bf16;transformers" --rounds 3
    python benchmarks/inference.py --only 8B --rounds 2 rows whose names have "8B" in them

llama.cpp takes part where `xllamacpp` and `gguf` are installed, vLLM where --vllm-python names the Python of
an environment with it; their rows say "not installed" elsewhere. Which instructions a build of llama.cpp uses
is printed with the result. Each model has a process of its own; in a round they take turns. With --keep the
result is written to benchmarks/results/inference.{json,md}.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from typing import Any

import numpy as np
from _harness import HERE, PAUSE_SECONDS, RowFailedError, Worker, machine, versions
from _inference_rows import ROWS

RESULTS = HERE / "results"
# Processes that take turns: those of a group are in memory together.
GROUPS = (
    ("bf16", "bf16, invariant=False", "transformers"),
    ("bf16, max_prefill_slowdown=1.4",),
    ("1.1B bf16", "vLLM 1.1B bf16"),
    ("1.1B int4", "llama.cpp 1.1B Q4_0"),
    ("1.1B int8", "llama.cpp 1.1B Q8_0"),
    ("1.1B int4, clients", "llama.cpp 1.1B Q4_0, clients"),
    ("8B int4 symmetric", "llama.cpp 8B Q4_0"),
    ("8B int4",),
    ("8B int8", "llama.cpp 8B Q8_0"),
)
PEERS = {row.name: row.peer for row in ROWS if row.peer}


def worker_of(name: str, vllm_python: str | None) -> Worker:
    """The process of a row. RowFailedError where what it needs is not installed."""
    peer = PEERS.get(name)
    if peer == "vllm":
        if vllm_python is None:
            raise RowFailedError(f"{name}: not installed (--vllm-python)")
        return Worker("torch", "_inference_rows", vllm_python)
    if peer and not all(importlib.util.find_spec(each) for each in (peer, "gguf")):
        raise RowFailedError(f"{name}: not installed (pip install {peer} gguf)")
    return Worker("torch" if name == "transformers" else "warptape", "_inference_rows")


def measure(
    names: list[str], rounds: int, threads: int, vllm_python: str | None
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Per model, lists over all rounds of what its rounds give; and what was left out."""
    workers: dict[str, Worker] = {}
    out: dict[str, dict[str, Any]] = {}
    missing: list[str] = []
    try:
        for name in names:
            try:
                workers[name] = worker_of(name, vllm_python)
                workers[name].ask(prepare=name, threads=threads)
            except RowFailedError as error:
                missing.append(str(error))
                if name in workers:
                    workers.pop(name).close()
        for _ in range(rounds):
            for name, worker in list(workers.items()):
                time.sleep(PAUSE_SECONDS)
                try:
                    result = worker.ask(result=True)["result"]
                except RowFailedError as error:
                    missing.append(str(error))
                    workers.pop(name).close()
                    continue
                for key, value in result.items():
                    values = value if isinstance(value, list) else [value]
                    out.setdefault(name, {}).setdefault(key, []).extend(values)
    finally:
        for worker in workers.values():
            worker.close()
    return out, missing


def ratios(mine: str, ours: dict[str, Any], name: str, theirs: dict[str, Any]) -> list[str]:
    """Times of one model over those of another engine's."""
    out = []
    for what in ("decode", "prefill", "clients"):
        if what in ours and what in theirs:
            ratio = float(np.median(ours[what])) / float(np.median(theirs[what]))
            out.append(f"\n{mine}, {what}: {ratio:.2f} of the time of {name}")
    return out


def lines_of(results: dict[str, dict[str, Any]]) -> list[str]:
    """The table."""
    lines = [
        "| model | decode, tokens/s | of the bandwidth | prompt of 512, tokens/s | 16 clients, tokens/s |"
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for name, r in results.items():
        step = float(np.median(r["decode"]))
        share = f"{r['bytes'][0] / step / max(r['bandwidth']):.2f}" if any(r.get("bytes", [])) else ""
        prompt = f"{512 / float(np.median(r['prefill'])):.0f}" if "prefill" in r else ""
        tokens = 16 * (128 + r.get("client_tokens", [32])[0])
        clients = f"{tokens / float(np.median(r['clients'])):.0f}" if "clients" in r else ""
        lines.append(f"| {name} | {1 / step:.1f} | {share} | {prompt} | {clients} |")
    ours, free, peer = (results.get(name) for name in GROUPS[0])  # transformers
    for what in ("decode", "prefill", "clients"):
        for other, unit in ((peer, "of transformers' time"), (free, "of the time with invariant=False")):
            if ours and other and what in other:
                ratio = float(np.median(ours[what])) / float(np.median(other[what]))
                lines.append(f"\n{what}: {ratio:.2f} {unit}")
    for mine, *theirs in GROUPS[2:]:
        for name in theirs:
            if mine in results and name in results:
                lines += ratios(mine, results[mine], name, results[name])
    waiting = results.get(GROUPS[1][0])
    if waiting:
        p50, p99 = float(np.median(waiting["decode"])), float(np.percentile(waiting["long prompt"], 99))
        lines.append(
            f"\nwhile a prompt of 4,096 tokens comes in: p99 between tokens {p99 / p50:.2f} of p50 without"
        )
    return lines


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", help="names, separated by semicolons; default: all")
    parser.add_argument("--only", help="rows whose names have this in them")
    parser.add_argument("--vllm-python", help="the Python of an environment with vLLM's CPU build")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/inference.{json,md}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    wanted = options.rows.split(";") if options.rows else [row.name for row in ROWS]
    wanted = [name for name in wanted if (options.only or "") in name]
    results: dict[str, dict[str, Any]] = {}
    missing: list[str] = []
    for group in GROUPS:
        names = [name for name in group if name in wanted]
        if names:
            done, absent = measure(names, options.rounds, options.threads, options.vllm_python)
            results |= done
            missing += absent
    head = {**machine(), **versions(), "threads": options.threads, "rounds": options.rounds}
    notes = {note for r in results.values() for note in r.pop("note", [])}
    head |= {"llama.cpp": "; ".join(sorted(notes))} if notes else {}
    lines = [*lines_of(results), *(f"\nleft out: {each}" for each in missing)]
    text = "\n".join(["# Inference", "", *(f"- {k}: {v}" for k, v in head.items()), "", *lines, ""])
    print(text)
    if options.keep:
        (RESULTS / "inference.md").write_text(text)
        (RESULTS / "inference.json").write_text(json.dumps({**head, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
