"""Small trainings give the losses that PyTorch gave from the same seed; losses.json was recorded by
record.py. Normal draws may differ by 2 ulp, hence the tolerance."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import warptape

HERE = Path(__file__).resolve().parent
GOLDEN: dict[str, list[float]] = json.loads((HERE / "losses.json").read_text())["losses"]


def load_trainings() -> Any:
    spec = importlib.util.spec_from_file_location("golden_losses", HERE / "losses.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


trainings = load_trainings()


@pytest.mark.parametrize("name", GOLDEN)
def test_losses(name: str) -> None:
    losses = trainings.TRAININGS[name](warptape)
    assert len(losses) == trainings.STEPS
    assert losses[-1] < 0.9 * losses[0], "the training must change the loss for its curve to say anything"
    assert losses == pytest.approx(GOLDEN[name], rel=1e-4)


def test_every_training_is_recorded() -> None:
    assert set(GOLDEN) == set(trainings.TRAININGS)
