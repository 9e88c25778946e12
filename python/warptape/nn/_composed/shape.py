"""Moves between channels and space. Legend: C channels, H and W space, r the factor, g groups."""

from __future__ import annotations

import warptape
from warptape import Tensor

__all__ = ["channel_shuffle", "conv_tbc", "pixel_shuffle", "pixel_unshuffle"]


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """[*, C r^2, H, W] -> [*, C, H r, W r]."""
    r = upscale_factor
    if input.dim() < 3 or input.shape[-3] % (r * r):
        raise RuntimeError(
            f"pixel_shuffle: expected [*, C, H, W] with C divisible by the square of upscale_factor={r}, got "
            f"{tuple(input.shape)}"
        )
    *batch, c, h, w = input.shape
    n = len(batch)
    blocks = input.reshape([*batch, c // (r * r), r, r, h, w])
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return blocks.permute(order).reshape([*batch, c // (r * r), h * r, w * r])


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """[*, C, H r, W r] -> [*, C r^2, H, W]."""
    r = downscale_factor
    if input.dim() < 3 or input.shape[-2] % r or input.shape[-1] % r:
        raise RuntimeError(
            f"pixel_unshuffle: expected [*, C, H, W] with H and W divisible by downscale_factor={r}, got "
            f"{tuple(input.shape)}"
        )
    *batch, c, h, w = input.shape
    n = len(batch)
    blocks = input.reshape([*batch, c, h // r, r, w // r, r])
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return blocks.permute(order).reshape([*batch, c * r * r, h // r, w // r])


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """[N, C, *] -> the same, the channels of the g groups interleaved."""
    n, c, *rest = input.shape
    if c % groups:
        raise RuntimeError(
            f"channel_shuffle: expected channels divisible by groups={groups}, got {c} channels"
        )
    return input.reshape([n, groups, c // groups, *rest]).transpose(1, 2).reshape(input.shape)


def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """[T, N, C] and weight [K, C, O] -> [T', N, O]: conv1d over the first dim."""
    out = warptape.conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return out.permute(2, 0, 1)
