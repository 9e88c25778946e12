"""The pages of ops: docs/reference/ops.md says what each does, docs/measurements/ops.md how it was tested."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import warptape

ROOT = Path(__file__).resolve().parents[1]
# Bits of OpFlag in csrc/op/facts.h, and where Python finds the op.
FUNCTION, METHOD, NN, LINALG, SPECIAL, FFT, WINDOWS, MASKED = 1, 2, 4, 16, 64, 128, 1 << 30, 1 << 31
FACTS = {8: "`out=`", 256: "mixed devices", 512: "complex", 2048: "random"}
NO_GRADIENT = 1024
PATHS = {
    FUNCTION: "",
    METHOD: "Tensor.",
    NN: "nn.functional.",
    LINALG: "linalg.",
    SPECIAL: "special.",
    FFT: "fft.",
    WINDOWS: "signal.windows.",
    MASKED: "masked.",
}


def table_rows() -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """The op table's rows by the path that they test, and by the other paths that are held against it."""
    sys.path.insert(0, str(ROOT / "tests"))
    import op_table.checks

    rows: dict[str, list[Any]] = defaultdict(list)
    spelled: dict[str, list[Any]] = defaultdict(list)
    for row in op_table.ROWS:
        try:
            op_table.checks.resolve(warptape, row)
        except op_table.checks.Missing:
            continue  # its tests are skipped: they say nothing of any path
        rows[row.name].append(row)
        if row.ref is not None or row.seeded:
            for path in row.spellings:
                spelled[path].append(row)
    return rows, spelled


def differentiable(row: Any) -> bool:
    """The row's gradient is checked."""
    return bool(row.grad and "float64" in row.dtypes)


def checks_of(rows: list[Any]) -> str:
    """What the op table checks of one path, in words."""
    samples = sum(len(row.samples(row.rng())) for row in rows)
    words = [f"{samples} sample{'s' * (samples != 1)}"]
    words.append(", ".join(sorted({d for row in rows for d in row.dtypes})))
    if any(map(differentiable, rows)):
        twice = any(differentiable(row) and row.second for row in rows)
        words.append("gradient and second gradient" if twice else "gradient")
    if any(row.broadcast and row.ref is not None for row in rows):
        words.append("broadcasting")
    errors = sum(len(row.errors) for row in rows)
    if errors:
        words.append(f"{errors} refusal{'s' * (errors != 1)}")
    return "; ".join(words)


def spelling_of(path: str, rows: list[Any]) -> str:
    """What is checked of a path that is another spelling of the rows' ops."""
    from op_table.table import expected_dtype, writes

    names = ", ".join(f"`{name}`" for name in sorted({row.name for row in rows}))
    inplace = writes(path)
    dtypes = {d for row in rows for d in row.dtypes if not inplace or expected_dtype(row.result, d) == d}
    what = f"the bytes of {names}" + (", in place" if inplace else "")
    if any(differentiable(row) and not row.view for row in rows):
        what += ", and its gradient"
    return f"{what}; {', '.join(sorted(dtypes))}"


def facts_of(group: list[Any]) -> str:
    """What the declarations of one name say of it, beside its arguments."""
    facts = [text for bit, text in FACTS.items() if any(op.flags & bit for op in group)]
    if all(op.flags & NO_GRADIENT for op in group):
        facts.append("no gradient")
    on_cpu, on_cuda = ({op.autocast[i] for op in group} - {"keep"} for i in (0, 1))
    if on_cpu == on_cuda and on_cpu:
        facts.append(f"autocast: {', '.join(sorted(on_cpu))}")
    else:
        facts += [
            f"autocast on {d}: {', '.join(sorted(r))}" for d, r in (("CPU", on_cpu), ("CUDA", on_cuda)) if r
        ]
    return ", ".join(facts)


def ops_by_path(ops: list[Any]) -> dict[str, list[Any]]:
    """Every op by each of its public names, in their order."""
    by_path: dict[str, list[Any]] = defaultdict(list)
    for op in ops:
        for bit, path in PATHS.items():
            if op.flags & bit:
                by_path[path + op.name].append(op)
    return dict(sorted(by_path.items()))


def ops_page(ops: list[Any]) -> str:
    """The text of docs/reference/ops.md."""
    by_path = ops_by_path(ops)
    lines = [
        "# Operations",
        "",
        "Written by `tools/generate.py` from the declarations of the operations.",
        "",
        f"{len(by_path)} public names. `help(name)` prints the same with an example.",
        "[How they were checked](../measurements/ops.md) has the tests of each.",
        "",
        "| name | what it does, and its declaration |",
        "| --- | --- |",
    ]
    for path, group in by_path.items():
        said = " ".join(next((op.doc for op in group if op.doc), "").split()).replace("|", "\\|")
        declared = [f"`{op.signature}`".replace("|", "\\|") for op in group]
        lines.append(f"| {path} | {'<br>'.join([said, *declared] if said else declared)} |")
    return "\n".join(lines) + "\n"


def ops_checks(ops: list[Any]) -> str:
    """The text of docs/measurements/ops.md."""
    rows, spelled = table_rows()
    by_path = ops_by_path(ops)
    lines = [
        "# How the operations were checked",
        "",
        "Written by `tools/generate.py` from the declarations of the ops and the rows of the op table.",
        "",
        f"{len(by_path)} public names. A row of the table (`tests/op_table`) is checked against a NumPy or",
        "SciPy reference (or, where the result is random, for what its distribution allows) in the dtypes",
        "named, in several memory layouts and, where it says so, for gradients by finite differences, second",
        "gradients and refusals. Another spelling of a row's op (its method, its in-place form, an alias) is",
        "run on the row's samples: it must give the same bytes, and the same gradient, as the row's path.",
        "",
        "| op | facts | checked |",
        "| --- | --- | --- |",
    ]
    for path, group in by_path.items():
        found = [checks_of(rows[path])] if path in rows else []
        found += [spelling_of(path, spelled[path])] if path in spelled else []
        lines.append(f"| {path} | {facts_of(group)} | {'; also '.join(found) or '-'} |")
    return "\n".join(lines) + "\n"
