"""Records promotion.json from PyTorch: `python tests/promotion/record.py`. Run where torch is installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cases
import torch


def main() -> None:
    """One line an op and left operand: the right operands' results, in the order of `cases.operands`."""
    table: dict[str, dict[str, str]] = {}
    for op in cases.OPS:
        rows: dict[str, list[str]] = {}
        for case in cases.operands():
            rows.setdefault(" ".join(case[:2]), []).append(cases.outcome(torch, op, case))
        table[op] = {left: " ".join(results) for left, results in rows.items()}
    table["result_type"] = {
        left: " ".join(
            str(torch.promote_types(getattr(torch, left), getattr(torch, right)))[6:]
            for right in cases.DTYPES
        )
        for left in cases.DTYPES
    }
    path = Path(__file__).with_name("promotion.json")
    path.write_text(
        json.dumps({"recorded from": f"torch {torch.__version__}", "table": table}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
