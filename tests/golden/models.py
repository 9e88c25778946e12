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
    head's logits; of "speech" Whisper's logits, and features of a recording; of "vision" those of models with
    images."""
    found: dict[str, list[float]] = json.loads(FILE.read_text())[what]
    return found


def speech_features() -> np.ndarray:
    """What Whisper's numbers are of, [2, 80, 100]."""
    return np.random.default_rng(5).standard_normal((2, 80, 100)).astype(np.float32)


def speech_tokens() -> np.ndarray:
    """The tokens beside them, [2, 7]."""
    return np.random.default_rng(6).integers(3, 40, (2, 7))


def pixels() -> np.ndarray:
    """Two images, [2, 3, 20, 20]."""
    return np.random.default_rng(7).standard_normal((2, 3, 20, 20)).astype(np.float32)


def tokens_with_images(token: int, count: int) -> np.ndarray:
    """Tokens of a text with two images, [1, 2 count + 6].

    Args:
        token: of images.
        count: of one.
    """
    image = [token] * count
    return np.array([[1, 5, *image, 7, 8, *image, 9, 11]])
