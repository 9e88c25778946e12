"""Compare warptape with the installed PyTorch on the CPU.

    python benchmarks/cpu.py                        the whole table (about ten minutes)
    python benchmarks/cpu.py --rows add,gpt_f32     some lines of it
    python benchmarks/cpu.py --quick                few and short rounds, to see that all of it runs

Ratios are time(warptape) / time(PyTorch) of medians over rounds in which both take turns, each in a
process of its own; `bound` is the upper 95 % bound of the ratio by bootstrap, and a target is met when the
bound is under it. `of limit` is the share of the machine's measured peak that warptape reaches, FLOP/s of
products of that dtype or bytes/s, whichever limit is nearer (_roofline.py); it stands where the row's work is
known: its products, convolutions, attention and recurrent layers are counted, large elementwise rows read and
write each tensor once (above 100 % where the last cache holds them).

Lines measured are kept in benchmarks/results as JSON (all times, machine, versions,
commit) and as a Markdown table; other lines there stay as they were. A --quick run keeps nothing unless
--out says where.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from _cpu_rows import GROUPS, ROWS, Group
from _harness import (
    HERE,
    LIBRARIES,
    Measured,
    Worker,
    machine,
    measure,
    measure_import,
    ratio_and_bound,
    versions,
)
from _roofline import share

LOSS_TOLERANCE = 0.01


def format_time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def percent(share: float | None) -> str:
    return f"{share:.0%}" if share else ""


def set_share(measured: Measured, row: Any, worker: Worker, threads: int) -> None:
    """How near the row comes to the machine's limit, where its work is known."""
    if measured.error:
        return
    threads = threads if row.threaded else 1
    flops = worker.ask(flops=True)["flops"] / row.units
    seconds = measured.medians()["warptape"]
    measured.share = share(seconds, flops, row.moved / row.units, threads, row.dtype)


def summary(group: Group, rows: list[Measured]) -> dict[str, Any]:
    """One line of the table out of its rows; rows that failed are named and make the target missed."""
    line: dict[str, Any] = {"name": group.name, "title": group.title, "target": group.target}
    failed = [f"{row.name}: {row.error}" for row in rows if row.error]
    good = [row for row in rows if not row.error]
    if good:
        line["ratio"], line["bound"] = ratio_and_bound(good)
        line["medians"] = good[0].medians() if len(rows) == 1 else None
        line["rows"] = [
            {
                "name": r.name,
                "ratio": ratio_and_bound([r])[0],
                "medians": r.medians(),
                "seconds": r.seconds,
                "share": r.share,
            }
            for r in good
        ]
        shares = [r.share for r in good if r.share]
        line["share"] = float(np.exp(np.mean(np.log(shares)))) if shares else None
    losses = [
        r.results["warptape"]["validation_loss"] - r.results["torch"]["validation_loss"]
        for r in good
        if any(r.results.values())
    ]
    if losses:
        line["loss_difference"], line["results"] = losses[0], good[0].results
    line["failed"] = failed
    line["met"] = bool(good) and not failed and line["bound"] <= group.target
    if losses and abs(losses[0]) > LOSS_TOLERANCE:
        line["met"] = False
    return line


def markdown(lines: list[dict[str, Any]]) -> str:
    """The table, a line per target, and under it each row of the lines that are a mean of several."""
    text = [
        "| work | target | ratio | bound | warptape | PyTorch | of limit | met |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    notes = []
    for line in lines:
        if "ratio" not in line:
            text.append(f"| {line['title']} | {line['target']} | | | | | | failed |")
        else:
            if line["medians"]:
                times = [format_time(line["medians"][library]) for library in LIBRARIES]
            else:
                worst = max(line["rows"], key=lambda row: row["ratio"])
                times = [f"mean of {len(line['rows'])}", f"worst {worst['ratio']:.2f}: {worst['name']}"]
            cells = [line["title"], line["target"], f"{line['ratio']:.3f}", f"{line['bound']:.3f}", *times]
            cells.append(percent(line.get("share")))
            text.append("| " + " | ".join(map(str, cells)) + f" | {'yes' if line['met'] else 'no'} |")
        if "loss_difference" in line:
            ours, peers = (line["results"][library] for library in LIBRARIES)
            notes.append(
                f"{line['name']}: validation loss after {ours['step']} steps {ours['validation_loss']:.4f}, "
                f"PyTorch {peers['validation_loss']:.4f} (at most {LOSS_TOLERANCE} apart)."
            )
        notes += [f"{line['name']}: failed: {failure}" for failure in line["failed"]]
    return "\n".join(text + [""] + [f"- {note}" for note in notes]) + "\n"


def details(lines: list[dict[str, Any]]) -> str:
    text = ["| row | ratio | warptape | PyTorch | of limit |", "| --- | --- | --- | --- | --- |"]
    for line in lines:
        for row in line.get("rows", []) if line.get("medians") is None else []:
            ours, peers = (format_time(row["medians"][library]) for library in LIBRARIES)
            limit = percent(row.get("share"))
            text.append(
                f"| {line['name']}: {row['name']} | {row['ratio']:.2f} | {ours} | {peers} | {limit} |"
            )
    return "\n".join(text) + "\n" if len(text) > 2 else ""


def keep(
    lines: list[dict[str, Any]],
    out: Path,
    groups: list[Group] = GROUPS,
    name: str = "cpu",
    title: str = "warptape against PyTorch on the CPU",
) -> None:
    """Write the lines into NAME.json and NAME.md, beside those of other targets that are there."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    kept = {line["name"]: line for line in json.loads(path.read_text())} if path.exists() else {}
    kept.update({line["name"]: line for line in lines})
    ordered = [kept[group.name] for group in groups if group.name in kept]
    path.write_text(json.dumps(ordered, indent=1) + "\n")
    stamps = dict.fromkeys(
        json.dumps({k: line["run"][k] for k in ("date", "machine", "versions")}) for line in ordered
    )
    about = []
    for stamp in map(json.loads, stamps):
        names = [line["name"] for line in ordered if line["run"]["date"] == stamp["date"]]
        m, v = stamp["machine"], stamp["versions"]
        about.append(
            f"- {stamp['date']}, commit {v['commit']}: {', '.join(names)}. {m['processor']}, "
            f"{m['cores']} cores, {', '.join(m['instruction_sets'])}, load average {m['load_average']:.1f} "
            f"at the start; Python {v['python']}, warptape {v['warptape']}, PyTorch {v['torch']}."
        )
    head = f"# {title}\n\nWritten by `python benchmarks/{name}.py`.\n\n"
    body = [markdown(ordered), "## Measured\n\n" + "\n".join(about) + "\n"]
    if rows := details(ordered):
        body.append("## Single rows\n\n" + rows)
    (out / f"{name}.md").write_text(head + "\n".join(body))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare warptape with PyTorch on the CPU.")
    parser.add_argument("--rows", help="lines of the table, by name, separated by commas (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names of the lines and end")
    parser.add_argument("--quick", action="store_true", help="5 rounds of 2 ms, to see that it runs")
    parser.add_argument("--rounds", type=int, help="rounds (default 31, with --quick 5)")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads (default: the cores)"
    )
    parser.add_argument("--out", type=Path, help="where results are kept (default benchmarks/results)")
    options = parser.parse_args()
    known = [group.name for group in GROUPS]
    options.rows = options.rows.split(",") if options.rows else known
    if unknown := [name for name in options.rows if name not in known]:
        parser.error(f"no line named {', '.join(unknown)}; there are {', '.join(known)}")
    options.rounds = options.rounds or (5 if options.quick else 31)
    return options


def main() -> int:
    options = arguments()
    if options.list:
        print("\n".join(f"{group.name:20} {group.title} (target {group.target})" for group in GROUPS))
        return 0
    run = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "rounds": options.rounds,
        "threads": options.threads,
    }
    workers: dict[str, Worker] = {}
    lines = []
    try:
        for group in (group for group in GROUPS if group.name in options.rows):
            if group.name == "import":
                measured = [measure_import("import", options.rounds)]
            else:
                measured = []
                for row in (row for row in ROWS if row.group == group.name):
                    for library in LIBRARIES:  # one that a failing row ended is started again
                        if library not in workers or workers[library].process.poll() is not None:
                            workers[library] = Worker(library)
                    seconds = 0.002 if options.quick else 0.01
                    measured.append(measure(row, workers, options.rounds, seconds, options.threads))
                    set_share(measured[-1], row, workers["warptape"], options.threads)
            lines.append({**summary(group, measured), "run": run})
            print(markdown(lines[-1:]).split("\n", 2)[2].strip(), flush=True)
    finally:
        for worker in workers.values():
            worker.close()
    print("\n" + markdown(lines))
    if options.out or not options.quick:
        keep(lines, options.out or HERE / "results")
    return 1 if any(line["failed"] for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
