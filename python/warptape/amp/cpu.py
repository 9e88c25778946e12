"""The older spelling of warptape.amp for the CPU: autocast without a device type."""

from __future__ import annotations

from .. import _C
from .._missing import install_getattr as _install_getattr
from ._older import Autocast as _Autocast
from ._older import GradScaler as _GradScaler

__all__ = ["GradScaler", "autocast"]


class autocast(_Autocast):
    """Deprecated: `warptape.amp.autocast("cpu", ...)`, with bfloat16 by default."""

    _older_device = "cpu"
    _older_dtype = _C.bfloat16


class GradScaler(_GradScaler):
    """Deprecated: `warptape.amp.GradScaler("cpu", ...)`."""

    _older_device = "cpu"


_install_getattr(__name__)
