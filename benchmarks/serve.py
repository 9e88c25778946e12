"""Measure `warptape serve`: time to first token over the bare engine, small requests, memory, overload.

    python benchmarks/serve.py                       all rows; those of wrk where it is installed
    python benchmarks/serve.py --rows first,memory --requests 100000

Server, worker and load share the machine. The result is kept in benchmarks/results/serve.{json,md}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _harness import HERE, machine

sys.path.insert(0, str(HERE.parent / "tests"))
from http_client import Connection
from serve_faults import memory, overload
from serving_models import Process, write_llm, write_repository
from warptape.inference import LLM, SamplingParams
from warptape.version import __version__

RESULTS = HERE / "results"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 2
SIZES = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "initializer_range": 0.02}
Row = dict[str, Any]


def first_token(rounds: int = 100) -> Row:
    """From the request to the first token, one client; the bare engine and the server take turns."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_llm(Path(folder) / "llm" / "1", **SIZES)
        llm, bare, served = LLM(path, enable_prefix_caching=False), [], []
        (path.parent / "config.json").write_text('{"parameters": {"enable_prefix_caching": false}}')
        body = {
            "model": "llm",
            "prompt": PROMPT,
            "max_tokens": 4,
            "seed": 1,
            "temperature": 0,
            "ignore_eos": True,
        }
        params = SamplingParams(max_tokens=4, seed=1, temperature=0, ignore_eos=True)

        async def all_rounds(server: Process) -> None:
            connection = Connection(server.url, server.token)
            for i in range(rounds + 10):
                start = time.perf_counter()
                for number, _ in enumerate(llm.stream(PROMPT, params)):
                    if number == 0:
                        bare.append(time.perf_counter() - start)
                start, number = time.perf_counter(), 0
                async for _ in connection.stream("/v1/completions", body):
                    if number == 0:
                        served.append(time.perf_counter() - start)
                    number += 1
                if i == 9:
                    bare.clear()
                    served.clear()

        with Process(Path(folder), "--access-log", "off") as server:
            asyncio.run(all_rounds(server))
    over = 1e3 * (np.array(served) - np.array(bare))
    return {
        "row": f"first token, prompt of {len(PROMPT)} tokens",
        "bare ms": round(1e3 * float(np.median(bare)), 2),
        "served ms": round(1e3 * float(np.median(served)), 2),
        "over ms": round(float(np.median(over)), 2),
        "goal": "at most 3 ms over the bare engine",
    }


def flat_memory(requests: int) -> Row:
    """Resident memory of front and worker, after each fifth of so many requests."""
    marks: list[list[int]] = []

    async def load(server: Process) -> None:
        pids, turn = [server.process.pid, *server.worker_pids()], iter(range(requests))

        async def client() -> None:
            connection = Connection(server.url, server.token)
            for i in turn:
                body = {"model": "llm", "prompt": f"request {i}", "max_tokens": 2, "seed": i}
                status, answer = await connection.post("/v1/completions", body)
                assert status == 200, answer
                if i % max(1, requests // 5) == 0 or i == requests - 1:
                    marks.append([memory(pid) >> 20 for pid in pids])

        await asyncio.gather(*(client() for _ in range(16)))

    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder))
        with Process(Path(folder), "--access-log", "off") as server:
            start = time.monotonic()
            asyncio.run(load(server))
            rate = requests / (time.monotonic() - start)
    return {
        "row": f"memory over {requests} completions of 2 tokens",
        "MB of front and workers": marks,
        "requests/s": round(rate),
        "goal": "flat",
    }


def goodput() -> Row:
    """Under ten times the load."""
    with tempfile.TemporaryDirectory() as folder:
        write_llm(Path(folder) / "llm" / "1")
        row = asyncio.run(overload(Path(folder), 10))
    return {"row": "10 times the load", **row, "goal": "0.8 of the peak, the rest 429"}


def lines_of(rows: list[Row], on: dict[str, Any]) -> list[str]:
    """The table."""
    lines = [f"{on['cores']} cores, {on['processor']}; load is the machine's average before a row.", ""]
    lines += ["| what | measured | goal | load |", "| --- | --- | --- | --- |"]
    for row in rows:
        figures = ", ".join(f"{k} {v}" for k, v in row.items() if k not in ("row", "goal", "load"))
        lines.append(f"| {row['row']} | {figures} | {row.get('goal', '')} | {row['load']:.1f} |")
    return lines


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="first,kserve,memory,overload")
    parser.add_argument("--requests", type=int, default=100_000, help="of the row memory")
    options = parser.parse_args()
    on, rows = machine(), []
    for name in options.rows.split(","):
        load, before = os.getloadavg()[0], len(rows)
        if name == "first":
            rows.append(first_token())
        elif name == "kserve":
            import _serve_rows

            rows += _serve_rows.rows()
        elif name == "memory":
            rows.append(flat_memory(options.requests))
        elif name == "overload":
            rows.append(goodput())
        else:
            parser.error(f"no row {name!r}")
        for row in rows[before:]:
            row["load"] = round(load, 1)
            print(json.dumps(row), flush=True)
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / "serve.json"
    measured = {row["row"] for row in rows}
    old = json.loads(kept.read_text())["rows"] if kept.exists() else []
    rows = [row for row in old if row["row"] not in measured] + rows  # other rows stay as they were
    kept.write_text(json.dumps({"machine": on, "version": __version__, "rows": rows}, indent=1) + "\n")
    table = lines_of(rows, on)
    (RESULTS / "serve.md").write_text("\n".join(table) + "\n")
    print("\n".join(table))


if __name__ == "__main__":
    main()
