"""The older spellings of warptape.amp, torch.cpu.amp and torch.cuda.amp: classes without a device type."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from warptape.amp.autocast_mode import autocast as _autocast
from warptape.amp.autocast_mode import get_autocast_dtype
from warptape.amp.grad_scaler import GradScaler as _GradScaler

if TYPE_CHECKING:
    from warptape import core as wt


def _deprecated(device: str, name: str) -> None:
    warnings.warn(
        f"`torch.{device}.amp.{name}(args...)` is deprecated. "
        f"Please use `torch.amp.{name}('{device}', args...)` instead.",
        FutureWarning,
        stacklevel=3,
    )


class Autocast(_autocast):
    """autocast of one kind of device; subclasses name it, and its dtype."""

    _older_device: ClassVar[str]
    _older_dtype: ClassVar[Any]

    def __init__(
        self, enabled: bool = True, dtype: wt.dtype | None = None, cache_enabled: bool = True
    ) -> None:
        _deprecated(self._older_device, "autocast")
        super().__init__(self._older_device, dtype or self._older_dtype, enabled, cache_enabled)

    def clone(self) -> _autocast:
        """A fresh context with the same settings."""
        return _autocast(self._older_device, self.fast_dtype, self._enabled, self._cache_given)


class GradScaler(_GradScaler):
    """GradScaler of one kind of device, which subclasses name."""

    _older_device: ClassVar[str]

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        _deprecated(self._older_device, "GradScaler")
        super().__init__(
            self._older_device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )


def get_autocast_gpu_dtype() -> Any:
    """The dtype that autocast("cuda") uses when none is given; deprecated as in PyTorch."""
    warnings.warn(
        "torch.get_autocast_gpu_dtype() is deprecated. Please use torch.get_autocast_dtype('cuda') instead.",
        DeprecationWarning,
        stacklevel=2,
    )
    return get_autocast_dtype("cuda")
