"""The older spelling of warptape.amp for CUDA: autocast without a device type."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from .. import _C
from ..amp import autocast as _autocast
from ..amp import custom_bwd as _custom_bwd
from ..amp import custom_fwd as _custom_fwd

__all__ = ["autocast", "custom_bwd", "custom_fwd"]


class autocast(_autocast):
    """Deprecated: `warptape.amp.autocast("cuda", ...)`, with float16 by default."""

    def __init__(self, enabled: bool = True, dtype: Any = _C.float16, cache_enabled: bool = True) -> None:
        warnings.warn(
            "`torch.cuda.amp.autocast(args...)` is deprecated. "
            "Please use `torch.amp.autocast('cuda', args...)` instead.",
            FutureWarning,
            stacklevel=2,
        )
        super().__init__("cuda", dtype, enabled, cache_enabled)

    def clone(self) -> _autocast:
        """A fresh context with the same settings."""
        return _autocast("cuda", self.fast_dtype, self._enabled, self._cache_given)


def custom_fwd(fwd: Callable[..., Any] | None = None, *, cast_inputs: Any = None) -> Callable[..., Any]:
    """Deprecated: `warptape.amp.custom_fwd(..., device_type="cuda")`."""
    return _custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Deprecated: `warptape.amp.custom_bwd(..., device_type="cuda")`."""
    return _custom_bwd(bwd, device_type="cuda")
