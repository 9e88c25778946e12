"""The memory format of convolutions' weights."""

from __future__ import annotations

from typing import Any

from ..modules import conv

__all__ = ["convert_conv2d_weight_memory_format", "convert_conv3d_weight_memory_format"]


def _converted(module: Any, kinds: tuple[Any, ...], memory_format: Any) -> Any:
    for part in module.modules():
        if isinstance(part, kinds):
            part.weight.data = part.weight.detach().clone(memory_format=memory_format)
    return module


def convert_conv2d_weight_memory_format(module: Any, memory_format: Any) -> Any:
    """Lays the weights of all Conv2d and ConvTranspose2d in `module` out in a memory format; returns it."""
    return _converted(module, (conv.Conv2d, conv.ConvTranspose2d), memory_format)


def convert_conv3d_weight_memory_format(module: Any, memory_format: Any) -> Any:
    """Lays the weights of all Conv3d and ConvTranspose3d in `module` out in a memory format; returns it."""
    return _converted(module, (conv.Conv3d, conv.ConvTranspose3d), memory_format)
