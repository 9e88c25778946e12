"""autocast as a context and a decorator, and the thread's settings behind it."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _C
from .._C import clear_autocast_cache
from ..core.grad_mode import _Mode
from ..core.pytree import tree_map_only

if TYPE_CHECKING:
    from warptape import core as wt

__all__ = [
    "autocast",
    "clear_autocast_cache",
    "custom_bwd",
    "custom_fwd",
    "get_autocast_dtype",
    "is_autocast_available",
    "is_autocast_cache_enabled",
    "is_autocast_enabled",
    "set_autocast_cache_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
]

_NARROW = (_C.bfloat16, _C.float16)
# PyTorch's other devices with autocast, and their dtypes. No tensor lies on them here: their state is kept
# and changes nothing.
_OTHERS = {
    "hpu": _C.bfloat16,
    "ipu": _C.float16,
    "maia": _C.bfloat16,
    "mps": _C.float16,
    "mtia": _C.float16,
    "privateuseone": _C.float16,
    "xla": _C.bfloat16,
    "xpu": _C.float16,
}
_DEVICES = ("cpu", "cuda", *_OTHERS)


class _OtherDevices(threading.local):
    """(enabled, dtype) by device."""

    def __init__(self) -> None:
        self.state = {device: (False, dtype) for device, dtype in _OTHERS.items()}


_others = _OtherDevices()


def _get(device_type: str) -> tuple[bool, Any]:
    if device_type in _OTHERS:
        return _others.state[device_type]
    return _C._get_autocast(device_type == "cuda")


def _set(device_type: str, enabled: bool, dtype: wt.dtype | None) -> tuple[bool, Any]:
    """Sets both, and returns what they were."""
    if device_type in _OTHERS:
        before = _others.state[device_type]
        _others.state[device_type] = bool(enabled), dtype
        return before
    return _C._set_autocast(enabled, dtype, device_type == "cuda")


def _check_string(device_type: str) -> None:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")


def _check_device(device_type: str) -> None:
    _check_string(device_type)
    if device_type not in _DEVICES:
        raise RuntimeError(
            f"User specified an unsupported autocast device_type '{device_type}'; expected one of {_DEVICES}"
        )


def is_autocast_available(device_type: str) -> bool:
    """Whether autocast works for a device type on this machine.

    True for PyTorch's other devices, which have no tensors here: their settings are kept.
    """
    _check_device(device_type)
    if device_type != "cuda":
        return True
    from ..cuda.devices import is_available

    return is_available()


def is_autocast_enabled(device_type: str = "cpu") -> bool:
    """Whether ops of this thread are cast.

    Args:
        device_type: "cpu" or "cuda".

    >>> with torch.autocast("cpu"):
    ...     torch.is_autocast_enabled("cpu")
    True
    """
    _check_device(device_type)
    return _get(device_type)[0]


def set_autocast_enabled(device_type: str, enabled: bool) -> None:
    """Switches casting on or off for this thread; the context manager puts it back, this does not.

    Args:
        device_type: "cpu" or "cuda".
        enabled: whether they are cast.
    """
    if is_autocast_available(device_type):
        _set(device_type, enabled, _get(device_type)[1])


def get_autocast_dtype(device_type: str = "cpu") -> Any:
    """The dtype that autocast(device_type) uses when none is given.

    Args:
        device_type: "cpu" or "cuda".

    >>> torch.get_autocast_dtype("cpu")
    torch.bfloat16
    """
    _check_device(device_type)
    return _get(device_type)[1]


def set_autocast_dtype(device_type: str, dtype: wt.dtype | None) -> None:
    """Sets the dtype that autocast(device_type) uses when none is given.

    Args:
        device_type: "cpu" or "cuda".
        dtype: float16 or bfloat16.
    """
    if is_autocast_available(device_type):
        _set(device_type, _get(device_type)[0], dtype)


def is_autocast_cache_enabled() -> bool:
    """Whether the narrow copies of parameters are kept until the outermost context ends.

    A parameter that several ops take is cast once then.
    """
    on = _C._set_autocast_cache(True)
    _C._set_autocast_cache(on)
    return on


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Says whether the narrow copies of parameters are kept until the outermost context ends.

    Args:
        enabled: whether they are.
    """
    _C._set_autocast_cache(enabled)


class autocast(_Mode):
    """autocast(device_type, dtype=None, enabled=True, cache_enabled=None): context and decorator.

    Products, convolutions and attention run in `dtype` (bfloat16 unless given; float16 is accepted), losses
    in float32, all other ops in the dtypes that reach them. float64 is never cast. Gradients reach each
    parameter in its own dtype. For a device that is not there, or a dtype that it does not support, it warns
    and does nothing.

    Raises:
        RuntimeError: an unknown device type.
        ValueError: a device type that is no string.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     y = torch.ones(2, 2) @ torch.ones(2, 2)
    >>> y.dtype
    torch.bfloat16
    """

    def __init__(
        self,
        device_type: str,
        dtype: wt.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        _check_device(device_type)
        self.device = device_type
        self.fast_dtype = get_autocast_dtype(device_type) if dtype is None else dtype
        self._cache_given = cache_enabled
        self._cache_enabled = is_autocast_cache_enabled() if cache_enabled is None else cache_enabled
        self._available = is_autocast_available(device_type)
        self._enabled = bool(enabled)
        self._before: list[tuple[bool, Any, bool]] = []
        if self._enabled and not self._available:
            warnings.warn(
                f"User provided device_type of '{device_type}', but it is not available. Disabling",
                stacklevel=2,
            )
            self._enabled = False
        elif self._enabled and self.fast_dtype not in _NARROW:
            warnings.warn(
                f"In {device_type} autocast, but the target dtype {self.fast_dtype} is not supported. "
                f"Disabling autocast. Supported are {_NARROW[0]} and {_NARROW[1]}.",
                stacklevel=2,
            )
            self._enabled = False

    def clone(self) -> autocast:
        """A fresh context with the same settings."""
        if not self._available:
            return type(self)(self.device, self.fast_dtype, False, self._cache_given)
        return type(self)(self.device, self.fast_dtype, self._enabled, self._cache_given)

    def __enter__(self) -> autocast:
        if self._available:
            _C._enter_autocast()
            cache = _C._set_autocast_cache(self._cache_enabled)
            before = _set(self.device, self._enabled, self.fast_dtype)
            self._before.append((*before, cache))
        return self

    def __exit__(self, *error: Any) -> None:
        if self._available:
            enabled, dtype, cache = self._before.pop()
            _set(self.device, enabled, dtype)
            _C._set_autocast_cache(cache)
            _C._leave_autocast()


def _cast(value: Any, device_type: str, dtype: wt.dtype | None) -> Any:
    def cast(t: object) -> Any:
        fits = t.is_floating_point() and t.dtype != _C.float64 and t.device.type == device_type
        return t.to(dtype) if fits else t

    return tree_map_only(_C.TensorBase, cast, value)


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: wt.dtype | None = None
) -> Callable[..., Any]:
    """Decorates the forward of an autograd.Function: with `cast_inputs`, its tensors come in that dtype.

    With `cast_inputs` the forward runs with autocast off; without, as it is. Use with custom_bwd.
    """
    _check_string(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    forward = fwd

    @functools.wraps(forward)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        ctx = args[0]
        ctx._dtype = get_autocast_dtype(device_type)
        ctx._fwd_used_autocast = is_autocast_enabled(device_type)
        if cast_inputs is None or not ctx._fwd_used_autocast:
            return forward(*args, **kwargs)
        ctx._fwd_used_autocast = False
        with autocast(device_type, enabled=False):
            return forward(*_cast(args, device_type, cast_inputs), **_cast(kwargs, device_type, cast_inputs))

    return decorated


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Callable[..., Any]:
    """Decorates the backward of an autograd.Function: it runs with the autocast of its forward.

    Args:
        bwd: the method.
        device_type: "cpu" or "cuda".
    """
    _check_string(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)
    backward = bwd

    @functools.wraps(backward)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        with autocast(device_type, enabled=args[0]._fwd_used_autocast, dtype=args[0]._dtype):
            return backward(*args, **kwargs)

    return decorated
