"""Layers that move values and compute none."""

from __future__ import annotations

from typing import Any

import warptape

from .. import functional as F
from .module import Plain

__all__ = ["ChannelShuffle", "Flatten", "PixelShuffle", "PixelUnshuffle", "Unflatten"]


class Flatten(Plain):
    """Makes the dimensions from `start_dim` to `end_dim` one: [N, *] -> [N, prod(*)] by default.

    >>> nn.Flatten()(torch.zeros(2, 3, 4)).shape
    torch.Size([2, 12])
    """

    _function, _shown = warptape.flatten, ("start_dim", "end_dim")

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim


class Unflatten(Plain):
    """Splits the dimension `dim` into the sizes `unflattened_size`, one of which may be -1.

    >>> nn.Unflatten(1, (2, 3))(torch.zeros(4, 6)).shape
    torch.Size([4, 2, 3])
    """

    _function, _shown = warptape.unflatten, ("dim", "unflattened_size")

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        if not isinstance(dim, int):
            raise TypeError(
                "invalid argument type for dim parameter: expected int (named dimensions are not supported)"
            )
        if not isinstance(unflattened_size, (tuple, list)):
            raise TypeError(
                f"unflattened_size must be a tuple, but found type {type(unflattened_size).__name__}"
            )
        for index, size in enumerate(unflattened_size):
            if not isinstance(size, int):
                raise TypeError(
                    "unflattened_size must be tuple of ints, but found element of type "
                    f"{type(size).__name__} at pos {index}"
                )
        self.dim, self.unflattened_size = dim, unflattened_size


class PixelShuffle(Plain):
    """[*, C r^2, H, W] -> [*, C, H r, W r] with r = `upscale_factor`.

    >>> nn.PixelShuffle(2)(torch.zeros(1, 4, 3, 3)).shape
    torch.Size([1, 1, 6, 6])
    """

    _function, _shown = F.pixel_shuffle, ("upscale_factor",)

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor


class PixelUnshuffle(Plain):
    """[*, C, H r, W r] -> [*, C r^2, H, W] with r = `downscale_factor`."""

    _function, _shown = F.pixel_unshuffle, ("downscale_factor",)

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor


class ChannelShuffle(Plain):
    """[N, C, *] -> the same, the channels of `groups` groups interleaved."""

    _function, _shown = F.channel_shuffle, ("groups",)

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups
