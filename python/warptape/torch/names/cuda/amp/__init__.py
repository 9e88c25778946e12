"""The older spelling of warptape.amp for CUDA: autocast without a device type."""

from __future__ import annotations

from functools import partial

from warptape import _C
from warptape.amp import custom_bwd as _custom_bwd
from warptape.amp import custom_fwd as _custom_fwd

from ...amp.older import Autocast as _Autocast
from ...amp.older import GradScaler as _GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(_Autocast):
    """Deprecated: `warptape.amp.autocast("cuda", ...)`, with float16 by default.

    It warns.

    Args:
        enabled: whether ops are cast.
        dtype: to which.
        cache_enabled: whether narrow copies of parameters are kept.
    """

    _older_device = "cuda"
    _older_dtype = _C.float16


class GradScaler(_GradScaler):
    """Deprecated: `warptape.amp.GradScaler("cuda", ...)`.

    It warns. The arguments are those of `warptape.amp.GradScaler` but the device.
    """

    _older_device = "cuda"


# Deprecated, too.
custom_fwd = partial(_custom_fwd, device_type="cuda")
custom_bwd = partial(_custom_bwd, device_type="cuda")
