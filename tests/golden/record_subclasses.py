"""Records subclasses.json from PyTorch: `python tests/golden/record_subclasses.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import subclasses
import torch


def main() -> None:
    """The ops of each program in their order."""
    golden = {"recorded from": f"torch {torch.__version__}"}
    golden |= {name: " ".join(subclasses.run(torch, name)[0]) for name in subclasses.NAMES}
    path = Path(__file__).resolve().parent / "subclasses.json"
    path.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
