"""torch.utils._device: a mode that gives functions which make tensors a device.

`torch.set_default_device` and `with torch.device(..)` need none: what makes tensors reads the default itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import warptape

from .. import _C
from .._missing import install_getattr as _install_getattr
from ..overrides import TorchFunctionMode


@functools.cache
def _device_constructors() -> set[Callable[..., Any]]:
    """The functions that make tensors, of none, on the device that they are given."""
    makers = {"tensor", "as_tensor", "asarray"}
    for name, _, args, *_ in _C._list_ops():
        named = {arg[0]: arg for arg in args}
        if "device" in named and not any("Tensor" in kind for _, kind, *_ in args):
            makers.add(name)
    places = (warptape, _C._fft, _C._windows)
    return {getattr(place, name) for place in places for name in makers if hasattr(place, name)}


class DeviceContext(TorchFunctionMode):
    """Within it, functions that make tensors do so on `device` unless they are told one."""

    def __init__(self, device: Any) -> None:
        self.device = _C.device(device)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the function, with the device where it has none."""
        kwargs = kwargs or {}
        if kwargs.get("device") is None and func in _device_constructors():
            kwargs["device"] = self.device
        return func(*args, **kwargs)


def device_decorator(device: Any, func: Callable[..., Any]) -> Callable[..., Any]:
    """`func`, called in the context `device` (or in what `device()` returns)."""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        with device() if callable(device) else device:
            return func(*args, **kwargs)

    return call


def set_device(device: Any) -> Callable[..., Any]:
    """The decorator of functions that make tensors on `device`."""
    return lambda func: device_decorator(_C.device(device), func)


_install_getattr(__name__)
