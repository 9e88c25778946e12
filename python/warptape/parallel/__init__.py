"""Ways to train one model on many ranks, over warptape.distributed."""

from . import pipeline

__all__ = ["pipeline"]
