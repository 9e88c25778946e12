"""Writes docs/ops.md, the page of every op with what the tests check of it: `python tests/op_table/page.py
[--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT / "tests")  # not this folder: its rows/ must be a package

from op_table import FAMILIES  # noqa: E402
from op_table.table import ALL, FLOATS, INTEGRAL, INTS, NUMERIC, SIGNED, Op  # noqa: E402

PAGE = ROOT / "docs" / "ops.md"
GROUPS = {
    ALL: "all",
    NUMERIC: "all but bool",
    FLOATS: "floats",
    INTEGRAL: "integers, bool",
    INTS: "integers",
    SIGNED: "signed",
}
HEAD = """# Every op, and what is checked of it

Written by `python tests/op_table/page.py` from the op table (`tests/op_table/rows`); do not edit. Every row
is run as the columns say, on every sample of the row, against a NumPy or SciPy reference computed in float64:

- **dtypes**: values, result dtype and shape in each; *all* is float64, float32, float16, bfloat16, int64,
  int32, int16, int8, uint8 and bool.
- **strides**: the same through transposed, stepped, offset and expanded inputs.
- **broadcast**: over shapes that broadcast, empty ones too, and over enough elements for several threads.
- **variants**: as a method; in place (`x_`: same object, same memory, version counted); with `out=`; as a
  view (aliases).
- **gradient**, **second**: in float64, by finite differences of our own, on every sample; the gradient also
  through non-contiguous inputs, and in every floating point dtype but float16 the fused backward against
  the composed one.
- **refused**: calls that must raise a typed error that names the op; besides these, every op is called
  without arguments, with an unknown keyword and with an object of a wrong type, and gets mutated calls that
  must not crash.
- **meta**: shape and dtype on the meta device equal the CPU's ("data": depends on data, so it is refused
  there).
"""


def dtypes(op: Op) -> str:
    return GROUPS.get(op.dtypes) or ", ".join(op.dtypes)


def variants(op: Op) -> str:
    found = (
        ["method"] * op.method
        + [op.inplace or ""] * bool(op.inplace)
        + ["out="] * op.out
        + ["view"] * op.view
    )
    return ", ".join(f"`{one}`" if one.endswith(("_", "=")) else one for one in found)


def mark(flag: object) -> str:
    return "yes" if flag else ""


def row(op: Op) -> str:
    cells = [
        f"`{op.name}`" + (f" ({op.label.partition(', ')[2] or op.label})" if op.label else ""),
        dtypes(op),
    ]
    cells += [mark(op.layouts), mark(op.broadcast), variants(op)]
    derivable = op.grad and "float64" in op.dtypes
    cells += [mark(derivable), mark(derivable and op.second), str(len(op.errors) or "")]
    cells += [{True: "yes", False: "data", None: ""}[op.meta]]
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    total = sum(len(members) for members in FAMILIES.values())
    parts.append(f"{total} rows in {len(FAMILIES)} families.\n")
    for family, members in FAMILIES.items():
        parts.append(f"## {family}\n")
        parts.append("| op | dtypes | strides | broadcast | variants | gradient | second | refused | meta |")
        parts.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        parts.append("\n".join(map(row, members)) + "\n")
    return "\n".join(parts)


def main() -> int:
    """0 if the page is written, or equal under --check."""
    text = page()
    if "--check" in sys.argv:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print("docs/ops.md differs from the op table: run python tests/op_table/page.py")
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
