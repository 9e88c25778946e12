"""Apple's GPUs, which this runtime does not serve."""

from __future__ import annotations


def is_available() -> bool:
    """False."""
    return False


def is_built() -> bool:
    """False."""
    return False
