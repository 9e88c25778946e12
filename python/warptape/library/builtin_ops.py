"""Ops of warptape under names of torch.ops, which libraries bring as extension modules for PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .. import _C
from ..amp import is_autocast_enabled
from ..core import offered
from .aten import aten_op
from .ops import OpOverloadPacket

# Libraries whose ops are declared here, by the end of their path: the file itself needs PyTorch.
_LIBRARIES = (
    os.path.join("torchvision", "_C.so"),
    os.path.join("torchaudio", "lib", "_torchaudio.abi3.so"),
    os.path.join("torchaudio", "lib", "libtorchaudio.abi3.so"),
)
_SPACES = ("torchaudio", "torchvision")
_REFUSED = {
    "torchvision::_deform_conv2d_backward": "the gradient is that of deform_conv2d itself",
    "torchvision::box_iou_rotated": "rotated boxes are not supported",
    "torchvision::qnms": "quantized tensors are not supported",
    "torchvision::qroi_align": "quantized tensors are not supported",
}
# No kernel of these libraries runs on CUDA devices.
_ANSWERS: dict[str, Callable[..., Any]] = {
    "torchvision::_cuda_version": lambda: -1,
    "_torchaudio::cuda_version": lambda: None,
    "_torchaudio::is_align_available": lambda: False,
}


def is_builtin_library(path: str) -> bool:
    """Whether the ops of the shared library `path` are declared here."""
    return path.endswith(_LIBRARIES)


class BuiltinOp(OpOverloadPacket):
    """An op declared in C++ under the name `namespace::name`; `default` is its one overload.

    It has its gradient and its form for meta tensors, so registrations of those change nothing. A function
    registered for autocast runs in its place while autocast is on for the device of the first tensor.
    """

    def __init__(self, name: str, op: Callable[..., Any]) -> None:
        super().__init__(name, op)
        self._autocast: dict[str, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the op."""
        if self._autocast:
            first = next((a for a in (*args, *kwargs.values()) if isinstance(a, _C.TensorBase)), None)
            device = first.device.type if first is not None else ""
            if device in self._autocast and is_autocast_enabled(device):
                return self._autocast[device](*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def register(self, fn: Callable[..., Any], key: str) -> None:
        """Takes `fn` for the dispatch key `key`, where that is one of autocast."""
        if key.startswith("Autocast"):
            self._autocast[key.removeprefix("Autocast").lower()] = fn


def builtin_op(name: str) -> Any:
    """The op `namespace::name`, or None."""
    if name in _ANSWERS:
        return _ANSWERS[name]
    if name in _REFUSED:

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"torch.ops.{name.replace('::', '.')}: {_REFUSED[name]}")

        return BuiltinOp(name, refuse)
    space, _, last = name.partition("::")
    if space == "aten":
        return aten_op(last)
    if space == "_c10d_functional":
        collectives = offered("distributed")._functional_ops
        return BuiltinOp(name, getattr(collectives, last)) if last in collectives.__all__ else None
    op = getattr(_C._private, f"{space}_{last}", None) if space in _SPACES else None
    return op and BuiltinOp(name, op)
