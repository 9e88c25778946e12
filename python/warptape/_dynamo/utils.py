"""torch._dynamo.utils: what libraries ask it."""

from __future__ import annotations

from .._missing import install_getattr as _install_getattr


def is_compile_supported(device_type: str) -> bool:
    """Whether torch.compile does something for a kind of device: it records graphs for all."""
    return True


_install_getattr(__name__)
