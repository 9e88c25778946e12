"""The older spelling of warptape.amp for the CPU: autocast without a device type."""

from __future__ import annotations

import warnings
from typing import Any

from .. import _C
from .._missing import install_getattr as _install_getattr
from .autocast_mode import autocast as _autocast
from .grad_scaler import GradScaler as _GradScaler

__all__ = ["GradScaler", "autocast"]


def _deprecated(name: str) -> None:
    warnings.warn(
        f"`torch.cpu.amp.{name}(args...)` is deprecated. "
        f"Please use `torch.amp.{name}('cpu', args...)` instead.",
        FutureWarning,
        stacklevel=3,
    )


class autocast(_autocast):
    """Deprecated: `warptape.amp.autocast("cpu", ...)`, with bfloat16 by default."""

    def __init__(self, enabled: bool = True, dtype: Any = _C.bfloat16, cache_enabled: bool = True) -> None:
        _deprecated("autocast")
        super().__init__("cpu", dtype, enabled, cache_enabled)

    def clone(self) -> _autocast:
        """A fresh context with the same settings."""
        return _autocast("cpu", self.fast_dtype, self._enabled, self._cache_given)


class GradScaler(_GradScaler):
    """Deprecated: `warptape.amp.GradScaler("cpu", ...)`."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        _deprecated("GradScaler")
        super().__init__("cpu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


_install_getattr(__name__)
