"""The names of torch.backends.mkldnn: there are no tensors in oneDNN's layouts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

enabled = False


def is_available() -> bool:
    """Whether there are tensors in oneDNN's layouts: False."""
    return False


@contextlib.contextmanager
def flags(enabled: bool = False, deterministic: bool = False) -> Iterator[None]:
    """A context in which nothing changes.

    Args:
        enabled, deterministic: not looked at.
    """
    yield
