"""Records generator.json and losses.json from PyTorch: `python tests/golden/record.py`, where torch is
installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import draws
import losses
import torch


def recorded(table: dict[str, draws.Draw], seeds: tuple[int, ...], read: Any) -> dict[str, dict[str, Any]]:
    """{name: {seed: numbers}}; each draw starts from its seed."""
    found: dict[str, dict[str, Any]] = {}
    for name, draw in table.items():
        for seed in seeds:
            torch.manual_seed(seed)
            found.setdefault(name, {})[str(seed)] = read(torch, draw(torch))
    return found


def short(rt: Any, tensor: Any) -> str:
    """Numbers in the fewest digits that give them back exactly."""
    if tensor.dtype == torch.float32:
        return " ".join(str(value) for value in tensor.flatten().numpy())
    return " ".join(repr(value) for value in draws.numbers(rt, tensor))


def main() -> None:
    """Two seeds for every draw, all seeds for one of them."""
    golden = {
        "recorded from": f"torch {torch.__version__}",
        "exact": recorded(draws.exact(), draws.SEEDS[1:3], short),
        "close": recorded(draws.close(), draws.SEEDS[1:3], short),
        "seeds": recorded({"rand(3)": lambda rt: rt.rand(3)}, draws.SEEDS, short),
        "long": recorded(draws.LONG, draws.SEEDS[2:3], draws.digest),
    }
    Path(__file__).with_name("generator.json").write_text(json.dumps(golden, indent=0) + "\n")
    trained = {name: training(torch) for name, training in losses.TRAININGS.items()}
    found = {"recorded from": f"torch {torch.__version__}", "losses": trained}
    Path(__file__).with_name("losses.json").write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    main()
