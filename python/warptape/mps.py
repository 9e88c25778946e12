"""torch.mps: Apple's GPUs, which this runtime does not serve."""

from ._missing import install_getattr as _install_getattr


def device_count() -> int:
    """0."""
    return 0


def is_available() -> bool:
    """False.

    >>> torch.backends.mps.is_available()
    False
    """
    return False


_install_getattr(__name__)
