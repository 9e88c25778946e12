"""torch._dynamo.utils: what libraries ask it."""

from __future__ import annotations

import functools
import warnings


def is_compile_supported(device_type: str) -> bool:
    """Whether torch.compile does something for a kind of device: it records graphs for all."""
    return True


@functools.cache
def warn_once(msg: str, stacklevel: int = 1) -> None:
    """Warns once in a process for each text and level."""
    warnings.warn(msg, stacklevel=stacklevel + 1)
