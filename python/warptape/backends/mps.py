"""Apple's GPUs, which this runtime does not serve."""

from __future__ import annotations

from .._missing import lookup as _lookup


def is_available() -> bool:
    """False."""
    return False


def is_built() -> bool:
    """False."""
    return False


__getattr__ = _lookup(__name__)
