"""The memory format of convolutions' weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..modules import conv

if TYPE_CHECKING:
    from warptape import core as wt

    from ..modules.module import Module

__all__ = ["convert_conv2d_weight_memory_format", "convert_conv3d_weight_memory_format"]


def _converted(module: Module, kinds: tuple[Any, ...], memory_format: wt.memory_format) -> Any:
    for part in module.modules():
        if isinstance(part, kinds):
            part.weight.data = part.weight.detach().clone(memory_format=memory_format)
    return module


def convert_conv2d_weight_memory_format(module: Module, memory_format: wt.memory_format) -> Any:
    """Lays the weights of all Conv2d and ConvTranspose2d in `module` out in a memory format; returns it.

    Args:
        module: changed in place.
        memory_format: as torch.channels_last.
    """
    return _converted(module, (conv.Conv2d, conv.ConvTranspose2d), memory_format)


def convert_conv3d_weight_memory_format(module: Module, memory_format: wt.memory_format) -> Any:
    """Lays the weights of all Conv3d and ConvTranspose3d in `module` out in a memory format; returns it.

    Args:
        module: changed in place.
        memory_format: as torch.channels_last_3d.
    """
    return _converted(module, (conv.Conv3d, conv.ConvTranspose3d), memory_format)
