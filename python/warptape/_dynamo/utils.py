"""torch._dynamo.utils: what libraries ask it."""

from __future__ import annotations

from .._missing import lookup as _lookup


def is_compile_supported(device_type: str) -> bool:
    """Whether torch.compile does something for a kind of device: it records graphs for all."""
    return True


__getattr__ = _lookup(__name__)
