"""torch.mps: Apple's GPUs, which this runtime does not serve."""


def device_count() -> int:
    """0."""
    return 0


def is_available() -> bool:
    """False.

    >>> torch.backends.mps.is_available()
    False
    """
    return False
