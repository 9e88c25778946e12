"""torch.utils._device: a mode that gives functions which make tensors a device.

`torch.set_default_device` and `with torch.device(..)` need none: what makes tensors reads the default itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from warptape import _C
from warptape import core as wt
from warptape.core.overrides import TorchFunctionMode

if TYPE_CHECKING:
    pass


@functools.cache
def _device_constructors() -> set[Callable[..., Any]]:
    """The functions that make tensors, of none, on the device that they are given."""
    makers = {"tensor", "as_tensor", "asarray"}
    for name, _, args, *_ in _C._list_ops():
        named = {arg[0]: arg for arg in args}
        if "device" in named and not any("Tensor" in kind for _, kind, *_ in args):
            makers.add(name)
    places = (wt, _C._fft, _C._windows)
    return {getattr(place, name) for place in places for name in makers if hasattr(place, name)}


class DeviceContext(TorchFunctionMode):
    """Within it, functions that make tensors do so on `device` unless they are told one."""

    def __init__(self, device: wt.device | str | int) -> None:
        self.device = _C.device(device)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
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


def set_device(device: wt.device | str | int) -> Callable[..., Any]:
    """The decorator of functions that make tensors on `device`."""
    return lambda func: device_decorator(_C.device(device), func)
