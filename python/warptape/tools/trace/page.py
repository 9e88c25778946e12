"""A comparison as text and as an HTML page of one file. Standard library and NumPy alone."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np

from .compare import Comparison, Difference
from .trace_file import Record

AROUND = 12  # records before and after the place that the page lists
SHOWN = 32  # values that differ that it lists

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:76em;margin:2em auto;padding:0 1em;
color:#1c2733}table{border-collapse:collapse;width:100%;margin:1em 0}td,th{border-bottom:1px solid #d8dee5;
padding:.25em .6em;text-align:left;vertical-align:top}
td{font:13px/1.4 ui-monospace,monospace;overflow-wrap:anywhere}
tr.first td{background:#ffe1dc}tr.other td{background:#fff4e0}b.bit{background:#c6341c;color:#fff}
@media (prefers-color-scheme:dark){body{background:#14191f;color:#dfe6ee}tr.first td{background:#5a241b}
tr.other td{background:#49391a}td,th{border-color:#333d48}}"""


def place_of(r: Record, rank: int) -> str:
    """Where a record lies: rank, step, number, op, module and line.

    Args:
        r: the record.
        rank: of its trace.
    """
    what = f"{r.key.kind} {r.key.name}"
    inside = f" in {r.key.module}" if r.key.module else ""
    line = f" at {r.key.site}" if r.key.site else ""
    shapes = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in r.key.values)
    return f"rank {rank}, step {r.step}, record {r.number}: {what}{inside}{line}, {shapes}"


def _structure(d: Difference, run1: str, run2: str) -> list[str]:
    lines = ["the runs are of different programs, or took different ways; they first do so here:"]
    for name, r in ((run1, d.first), (run2, d.second)):
        lines.append(f"  {name}: {place_of(r, d.rank) if r else 'has ended'}")
    return lines


def _values(d: Difference, run1: str, run2: str) -> list[str]:
    assert d.first is not None and d.second is not None
    lines = ["values first differ here:", f"  {place_of(d.record, d.rank)}"]
    if d.first.key.site != d.second.key.site:
        lines.append(f"  in {run2} at {d.second.key.site}")
    lines.append(f"  {run1}: {', '.join(d.first.hashes)}")
    lines.append(f"  {run2}: {', '.join(d.second.hashes)}")
    if d.before is not None:
        lines.append(f"  equal before: {place_of(d.before, d.rank)}")
    lines.append(f"  to see the values, run both again with keep=[({d.first.step}, {d.first.number})]")
    return lines


def text_of(out: Comparison, run1: str, run2: str) -> str:
    """What the command prints.

    Args:
        out: the comparison.
        run1, run2: how the runs are called.
    """
    differences = [d for d in (out.structure, out.parts) if d is not None]
    lines = list(out.notes)
    for d in sorted(differences, key=lambda d: (d.record.step, d.record.number)):
        lines += _structure(d, run1, run2) if d is out.structure else _values(d, run1, run2)
    for d in out.ends:
        which = run1 if d.first is None else run2
        lines.append(f"rank {d.rank}: the trace of {which} ends first, in step {d.record.step}")
    verdict = "equal" if out.equal else "different"
    lines.append(f"{verdict}: {out.compared} records compared, {out.different} of them differ")
    return "\n".join(lines)


def kept_values(folder: str, rank: int, r: Record) -> list[tuple[dict[str, Any], np.ndarray]]:
    """The tensors that a run kept of a record: dtype and shape, and the bytes.

    Args:
        folder: of the run.
        rank: of the trace.
        r: the record.
    """
    where = Path(folder)
    where = where.parent if where.is_file() else where
    values = []
    for k in range(len(r.hashes)):
        path = where / f"rank{rank}.step{r.step}.record{r.number}.value{k}.tensor"
        if path.is_file():
            head, _, data = path.read_bytes().partition(b"\n")
            values.append((json.loads(head), np.frombuffer(data, np.uint8)))
    return values


_SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}


def _numbers(head: dict[str, Any], data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values, and their bits as unsigned numbers."""
    size = _SIZES.get(head["dtype"], 1)
    bits = data.view(f"u{size}")
    if head["dtype"] == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32), bits
    return (data.view(head["dtype"]) if head["dtype"] in _SIZES else bits), bits


def _bits(value: int, other: int, size: int) -> str:
    """The bits of a value; those that the other has otherwise are marked."""
    pairs = zip(f"{value:0{8 * size}b}", f"{other:0{8 * size}b}", strict=True)
    return "".join(p if p == q else f'<b class="bit">{p}</b>' for p, q in pairs)


def _values_table(both: list[tuple[dict[str, Any], np.ndarray]]) -> str:
    (head, data), (other_head, other_data) = both
    if head != other_head:
        return f"<p>The kept values are of two kinds: {html.escape(f'{head} and {other_head}')}.</p>"
    x, xb = _numbers(head, data)
    y, yb = _numbers(other_head, other_data)
    places = np.flatnonzero(xb != yb)
    rows = []
    with np.errstate(all="ignore"):
        for name, v in (("first", x.astype(np.float64)), ("second", y.astype(np.float64))):
            if v.size:
                stats = (v.mean(), np.sqrt((v * v).mean()), v.min(), v.max(), np.isnan(v).sum())
                rows.append(f"<tr><td>{name}</td>" + "".join(f"<td>{s:.9g}</td>" for s in stats) + "</tr>")
    table = (
        "<table><tr><th>run<th>mean<th>root of mean square<th>least<th>greatest<th>NaN</tr>"
        + "".join(rows)
        + "</table>"
    )
    size = xb.dtype.itemsize
    differing = "".join(
        f"<tr><td>{[int(i) for i in np.unravel_index(p, head['shape'] or [1])]}</td><td>{x[p]!r}</td>"
        f"<td>{y[p]!r}</td><td>{_bits(int(xb[p]), int(yb[p]), size)}<br>{_bits(int(yb[p]), int(xb[p]), size)}"
        "</td></tr>"
        for p in places[:SHOWN]
    )
    return (
        f"{table}<p>{places.size} of {xb.size} values differ"
        + (f"; the first {SHOWN} of them:" if places.size > SHOWN else ":")
        + "</p><table><tr><th>at<th>first<th>second<th>bits that differ</tr>"
        + differing
        + "</table>"
    )


def _around(d: Difference, runs: list[list[Record]]) -> str:
    """The records of both sides around the place, in lockstep."""
    first, second = d.first, d.second
    rows = []
    for offset in range(-AROUND, AROUND + 1):
        cells, hashes = [], []
        for records, middle in zip(runs, (first, second)):
            at = records.index(middle) + offset if middle is not None else len(records) + offset
            r = records[at] if 0 <= at < len(records) else None
            hashes.append(r and r.hashes)
            text = f"{r.step}.{r.number} {r.key.kind} <b>{html.escape(r.key.name)}</b>" if r else ""
            more = f"<br>{html.escape(r.key.module)} {html.escape(r.key.site)}" if r else ""
            cells.append(f"<td>{text}{more}</td><td>{'<br>'.join(r.hashes) if r else ''}</td>")
        kind = "first" if offset == 0 else "other" if hashes[0] != hashes[1] else ""
        rows.append(f'<tr class="{kind}">{"".join(cells)}</tr>')
    return (
        "<table><tr><th>first run<th>hash<th>second run<th>hash</tr>" + "".join(rows) + "</table>"
        if any(rows)
        else ""
    )


def page_of(out: Comparison, run1: str, run2: str, records: dict[int, list[list[Record]]]) -> str:
    """The page: the text, both sides around the first difference, and the values that both runs kept there.

    Args:
        out: the comparison.
        run1, run2: the folders.
        records: of both runs, by rank.
    """
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>warptape diff</title>",
        f"<style>{_STYLE}</style><h1>{html.escape(run1)} and {html.escape(run2)}</h1>",
        f"<pre>{html.escape(text_of(out, run1, run2))}</pre>",
    ]
    for title, d in (("Where values part", out.parts), ("Where the programs part", out.structure)):
        if d is None:
            continue
        parts.append(f"<h2>{title}</h2>{_around(d, records[d.rank])}")
        if d.first is None or d.second is None:
            continue
        kept = [kept_values(run, d.rank, r) for run, r in ((run1, d.first), (run2, d.second))]
        for k, both in enumerate(zip(*kept)):
            parts.append(f"<h3>Value {k}</h3>{_values_table(list(both))}")
        if d is out.parts and d.first.statistics and d.second.statistics:
            rows = "".join(
                f"<tr><td>{name}</td><td>{a:.9g}</td><td>{b:.9g}</td></tr>"
                for x, y in zip(d.first.statistics, d.second.statistics)
                for name, a, b in zip(("norm", "mean", "least", "greatest", *range(8)), x, y)
            )
            parts.append(f"<h3>Statistics</h3><table><tr><th><th>first<th>second</tr>{rows}</table>")
    return "\n".join(parts) + "\n</html>\n"
