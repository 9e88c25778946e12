"""The older spelling of warptape.amp for CUDA: autocast without a device type."""

from __future__ import annotations

from functools import partial

from ... import _C
from ..._missing import install_getattr as _install_getattr
from ...amp import custom_bwd as _custom_bwd
from ...amp import custom_fwd as _custom_fwd
from ...amp._older import Autocast as _Autocast
from ...amp._older import GradScaler as _GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(_Autocast):
    """Deprecated: `warptape.amp.autocast("cuda", ...)`, with float16 by default."""

    _older_device = "cuda"
    _older_dtype = _C.float16


class GradScaler(_GradScaler):
    """Deprecated: `warptape.amp.GradScaler("cuda", ...)`."""

    _older_device = "cuda"


# Deprecated, too.
custom_fwd = partial(_custom_fwd, device_type="cuda")
custom_bwd = partial(_custom_bwd, device_type="cuda")

_install_getattr(__name__)
