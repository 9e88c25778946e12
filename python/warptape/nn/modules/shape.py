"""Layers that move values and compute none."""

from __future__ import annotations

from collections.abc import Sequence

from warptape import core as wt

from .. import functional as F
from .module import Plain

__all__ = ["ChannelShuffle", "Flatten", "PixelShuffle", "PixelUnshuffle", "Unflatten"]


class Flatten(Plain):
    """Makes the dimensions from `start_dim` to `end_dim` one: [N, *] -> [N, prod(*)] by default.

    Args:
        start_dim, end_dim: the first and the last dimension of those that become one.

    >>> nn.Flatten()(torch.zeros(2, 3, 4)).shape
    torch.Size([2, 12])
    """

    _function, _shown = wt.flatten, ("start_dim", "end_dim")

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim


class Unflatten(Plain):
    """Splits the dimension `dim` into the sizes `unflattened_size`, one of which may be -1.

    Args:
        dim: the dimension that is split.
        unflattened_size: a tuple or list of sizes whose product is that dimension's.

    Raises: TypeError for a dim that is no number and sizes that are no tuple of them.

    >>> nn.Unflatten(1, (2, 3))(torch.zeros(4, 6)).shape
    torch.Size([4, 2, 3])
    """

    _function, _shown = wt.unflatten, ("dim", "unflattened_size")

    def __init__(self, dim: int, unflattened_size: Sequence[int] | Sequence[tuple[str, int]]) -> None:
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

    From Shi et al., "Real-Time Single Image and Video Super-Resolution" (2016): r^2 channels become one of r
    times the size.

    Args:
        upscale_factor: r; the channels must be a multiple of r^2.

    >>> nn.PixelShuffle(2)(torch.zeros(1, 4, 3, 3)).shape
    torch.Size([1, 1, 6, 6])
    """

    _function, _shown = F.pixel_shuffle, ("upscale_factor",)

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor


class PixelUnshuffle(Plain):
    """[*, C, H r, W r] -> [*, C r^2, H, W] with r = `downscale_factor`.

    The inverse of PixelShuffle: each r x r block becomes r^2 channels.

    Args:
        downscale_factor: r; height and width must be multiples of it.

    >>> nn.PixelUnshuffle(2)(torch.zeros(1, 1, 6, 6)).shape
    torch.Size([1, 4, 3, 3])
    """

    _function, _shown = F.pixel_unshuffle, ("downscale_factor",)

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor


class ChannelShuffle(Plain):
    """[N, C, *] -> the same, the channels of `groups` groups interleaved.

    It lets grouped convolutions mix their groups (Zhang et al., "ShuffleNet", 2017, section 3.1).

    Args:
        groups: the number of groups, which divides C.

    >>> nn.ChannelShuffle(2)(torch.arange(4.0).view(1, 4, 1)).flatten()
    tensor([0., 2., 1., 3.])
    """

    _function, _shown = F.channel_shuffle, ("groups",)

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups
