"""The older spelling of warptape.amp for the CPU: autocast without a device type."""

from __future__ import annotations

from warptape import _C

from .older import Autocast as _Autocast
from .older import GradScaler as _GradScaler

__all__ = ["GradScaler", "autocast"]


class autocast(_Autocast):
    """Deprecated: `warptape.amp.autocast("cpu", ...)`, with bfloat16 by default.

    It warns.

    Args:
        enabled: whether ops are cast.
        dtype: to which.
        cache_enabled: whether narrow copies of parameters are kept.
    """

    _older_device = "cpu"
    _older_dtype = _C.bfloat16


class GradScaler(_GradScaler):
    """Deprecated: `warptape.amp.GradScaler("cpu", ...)`.

    It warns. The arguments are those of `warptape.amp.GradScaler` but the device.
    """

    _older_device = "cpu"
