"""Numbers that transformers computed for folders of small models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from model_configs import CONFIGS, ENCODERS, HEADS

NAMES = [*CONFIGS, *ENCODERS, *HEADS]
FILE = Path(__file__).with_name("models.json")


def recorded(what: str = "numbers") -> dict[str, list[float]]:
    """For each name the logits of some tokens after the last, or an encoder's vectors and pooler, or its
    head's logits; of "speech" Whisper's logits, and features of a recording."""
    found: dict[str, list[float]] = json.loads(FILE.read_text())[what]
    return found


def speech_features() -> np.ndarray:
    """What Whisper's numbers are of, [2, 80, 100]."""
    return np.random.default_rng(5).standard_normal((2, 80, 100)).astype(np.float32)


def speech_tokens() -> np.ndarray:
    """The tokens beside them, [2, 7]."""
    return np.random.default_rng(6).integers(3, 40, (2, 7))
