"""Small trainings give the losses that PyTorch gave from the same seed; losses.json was recorded by
record.py. Normal draws may differ by 2 ulp, hence the tolerance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import warptape

from golden import losses

HERE = Path(__file__).resolve().parent
GOLDEN: dict[str, list[float]] = json.loads((HERE / "losses.json").read_text())["losses"]


@pytest.mark.parametrize("name", GOLDEN)
def test_losses(name: str) -> None:
    found = losses.TRAININGS[name](warptape)
    assert len(found) == losses.STEPS
    assert found[-1] < 0.9 * found[0], "the training must change the loss for its curve to say anything"
    assert found == pytest.approx(GOLDEN[name], rel=1e-4)


def test_every_training_is_recorded() -> None:
    assert set(GOLDEN) == set(losses.TRAININGS)
