"""Checkpoints of any layout of ranks that load into any other: torch.distributed.checkpoint's names."""

from __future__ import annotations

from .keep import Checkpoints
from .layout import CheckpointException
from .load import load, metadata, verify
from .save import async_save, save
from .state import PerRank

__all__ = [
    "CheckpointException",
    "Checkpoints",
    "PerRank",
    "async_save",
    "load",
    "metadata",
    "save",
    "verify",
]
