"""PixelShuffle and PixelUnshuffle, where programs may look for them."""

from .shape import PixelShuffle, PixelUnshuffle

__all__ = ["PixelShuffle", "PixelUnshuffle"]
