"""What a worker serves as an encoder: every architecture that EncoderConfig has."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_configs import ENCODERS
from serving_models import write_encoder
from warptape.models import EncoderConfig
from warptape.serve.engine_worker import EngineWorker
from warptape.serve.workers import WorkerSpec


@pytest.mark.parametrize("name", ENCODERS)
def test_a_folder_of_an_encoder(name: str, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / name, ENCODERS[name])
    said = EngineWorker(WorkerSpec("llm", name, 1, str(folder))).metadata()
    positions = 62 if name == "xlm-roberta" else 64  # behind that of padding
    assert said["kind"] == "encoder"
    assert said["max_model_len"] == said["max_embedded_len"] == positions
    assert set(ENCODERS) <= EncoderConfig.architectures.keys()
