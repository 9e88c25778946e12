"""ChannelShuffle, where programs may look for them."""

from .shape import ChannelShuffle

__all__ = ["ChannelShuffle"]
