"""Training by torchao: float8 on emulated formats, and fake quantisation. The same program runs on PyTorch.

python tools/torchao_training.py --write pytorch.json                             with PyTorch and torchao
python -m warptape.torch tools/torchao_training.py --beside pytorch.json          with torchao, here

A case is a few steps; its numbers are each step's loss and the norms of the first step's gradients. Prints
the largest relative difference of each case, of the first step and of all, and exits with 1 where a first
step's is above 1e-5 (float32) or 1e-2 (bfloat16). Later steps may round a number the other way, and so differ
by more.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

torch: Any = importlib.import_module("torch")
STEPS = 5


def filled(model: Any) -> Any:
    """The model with numbers that do not depend on the library."""
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.from_numpy((rng.normal(size=tuple(p.shape)) * 0.1).astype(np.float32)))
    return model


def net() -> Any:
    """64 numbers to 64, by layers whose sizes are multiples of a group."""
    nn = torch.nn
    return filled(nn.Sequential(nn.Linear(64, 128, bias=False), nn.GELU(), nn.Linear(128, 64, bias=False)))


def trained(model: Any, dtype: Any = None) -> list[float]:
    """The losses, after the first step's norms of gradients."""
    dtype = dtype or torch.float32
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rng = np.random.default_rng(1)
    numbers: list[float] = []
    for step in range(STEPS):
        x, y = (torch.from_numpy(rng.normal(size=(16, 64)).astype(np.float32)).to(dtype) for _ in range(2))
        loss = ((model(x) - y).float() ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            numbers += [float(p.grad.double().norm()) for p in model.parameters()]
        optimizer.step()
        numbers.append(float(loss.detach()))
    return numbers


def float8(recipe: str, dtype: Any) -> list[float]:
    """convert_to_float8_training with a recipe's scales."""
    training = importlib.import_module("torchao.float8")
    config = training.Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "emulate", True)
    return trained(training.convert_to_float8_training(net().to(dtype), config=config), dtype)


def fake_quantised(kind: str) -> list[float]:
    """quantize_ with a QATConfig."""
    qat = importlib.import_module("torchao.quantization.qat")
    quantize_ = importlib.import_module("torchao.quantization").quantize_
    weight = qat.IntxFakeQuantizeConfig(torch.int4, group_size=32)
    tokens = qat.IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    configs = {
        "int4": {"weight_config": weight},
        "int8 by token, int4": {"activation_config": tokens, "weight_config": weight},
        "float8": dict.fromkeys(("activation_config", "weight_config"), qat.Float8FakeQuantizeConfig()),
    }
    model = net()
    quantize_(model, qat.QATConfig(step="prepare", **configs[kind]))
    return trained(model)


def cases() -> dict[str, list[float]]:
    """The numbers of each case."""
    found = {}
    for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):
        for dtype in (torch.float32, torch.bfloat16):
            found[f"float8 {recipe} {dtype}".replace("torch.", "")] = float8(recipe, dtype)
    for kind in ("int4", "int8 by token, int4", "float8"):
        found[f"QAT {kind}"] = fake_quantised(kind)
    return found


def main() -> None:
    """Writes the numbers, or compares them."""
    parser = argparse.ArgumentParser(description="Training by torchao, beside PyTorch.")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--beside", type=Path)
    given = parser.parse_args()
    found = cases()
    if given.write:
        given.write.write_text(json.dumps(found))
    worst = 0.0
    for name, theirs in (json.loads(given.beside.read_text()) if given.beside else {}).items():
        apart = [abs(a - b) / abs(b) for a, b in zip(found[name], theirs, strict=True)]
        first = max(apart[: 1 - STEPS])
        worst = max(worst, first / (1e-2 if "bfloat16" in name else 1e-5))
        print(f"{name:38} first step {first:.1e}  all {max(apart):.1e}")
    sys.exit(worst > 1)


if __name__ == "__main__":
    main()
