"""torch.mps: Apple's GPUs, which this runtime does not serve."""

from ._missing import lookup as _lookup


def device_count() -> int:
    """0."""
    return 0


def is_available() -> bool:
    """False."""
    return False


__getattr__ = _lookup(__name__)
