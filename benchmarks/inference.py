"""Measure the inference engine (decoding, prompts, many clients) beside transformers on PyTorch.

    python benchmarks/inference.py                      all rows (the 8B rows need 12 GB of memory)
    python benchmarks/inference.py --rows "bf16;transformers" --rounds 3

Each model has a process of its own; in a round they take turns. The result is kept in
benchmarks/results/inference.{json,md}.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from _harness import HERE, RowFailedError, Worker, machine, versions
from _inference_rows import ROWS

RESULTS = HERE / "results"
# Processes that take turns: those of a group are in memory together.
GROUPS = (
    ("bf16", "bf16, invariant=False", "transformers"),
    ("bf16, max_prefill_slowdown=1.4",),
    ("8B int4",),
    ("8B int8",),
)


def measure(names: list[str], rounds: int, threads: int) -> dict[str, dict[str, Any]]:
    """Per model, lists over all rounds of what its rounds give."""
    workers: dict[str, Worker] = {}
    out: dict[str, dict[str, Any]] = {name: {} for name in names}
    try:
        for name in names:
            library = "torch" if name == "transformers" else "warptape"
            workers[name] = Worker(library, "_inference_rows")
            workers[name].ask(prepare=name, threads=threads)
        for _ in range(rounds):
            for name, worker in workers.items():
                for key, value in worker.ask(result=True)["result"].items():
                    out[name].setdefault(key, []).extend(value if isinstance(value, list) else [value])
    except RowFailedError as error:
        print(f"left out: {error}")
        out = {name: value for name, value in out.items() if value}
    finally:
        for worker in workers.values():
            worker.close()
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
        clients = f"{16 * (128 + 32) / float(np.median(r['clients'])):.0f}" if "clients" in r else ""
        lines.append(f"| {name} | {1 / step:.1f} | {share} | {prompt} | {clients} |")
    ours, free, peer = (results.get(name) for name in GROUPS[0])
    for what in ("decode", "prefill", "clients"):
        for other, told in ((peer, "of transformers' time"), (free, "of the time with invariant=False")):
            if ours and other and what in other:
                ratio = float(np.median(ours[what])) / float(np.median(other[what]))
                lines.append(f"\n{what}: {ratio:.2f} {told}")
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    wanted = options.rows.split(";") if options.rows else [row.name for row in ROWS]
    results: dict[str, dict[str, Any]] = {}
    for group in GROUPS:
        names = [name for name in group if name in wanted]
        if names:
            results |= measure(names, options.rounds, options.threads)
    head = {**machine(), **versions(), "threads": options.threads, "rounds": options.rounds}
    text = "\n".join(
        ["# Inference", "", *(f"- {k}: {v}" for k, v in head.items()), "", *lines_of(results), ""]
    )
    print(text)
    (RESULTS / "inference.md").write_text(text)
    (RESULTS / "inference.json").write_text(json.dumps({**head, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
