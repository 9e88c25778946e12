"""Dropout of whole channels, and dropout for self-normalising networks. Legend: N batch, C channels."""

from __future__ import annotations

import warnings

from warptape import _C, Tensor

__all__ = ["alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"]

_SELU_FLOOR = -1.7580993408473766  # what selu tends to far below zero: -scale * alpha


def _check(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _drop_channels(input: Tensor, p: float, training: bool, inplace: bool, batched: bool) -> Tensor:
    """Zeroes channels: dims 0 and 1 name one, or dim 0 alone if not `batched`."""
    if not training:
        return input
    kept = 2 if batched else 1
    mask = _C._nn.dropout(input.new_ones(list(input.shape[:kept]) + [1] * (input.dim() - kept)), p, True)
    return input.mul_(mask) if inplace else input * mask


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """[N, C, L] or [C, L]: zeroes each channel with probability `p`, scales the others by 1 / (1 - p)."""
    _check(p)
    if input.dim() not in (2, 3):
        raise RuntimeError(
            f"dropout1d: Expected 2D or 3D input, but received a {input.dim()}D input. Note that dropout1d "
            "exists to "
            "provide channel-wise dropout on inputs with 1 spatial dimension, a channel dimension, and an "
            "optional "
            "batch dimension (i.e. 2D or 3D inputs)."
        )
    return _drop_channels(input, p, training, inplace, batched=input.dim() == 3)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """[N, C, H, W] (or [N, C, L]): zeroes each channel with probability `p`, scales the others by 1 / (1 -
    p)."""
    _check(p)
    if input.dim() not in (3, 4):
        warnings.warn(
            f"dropout2d: Received a {input.dim()}-D input to dropout2d, which is deprecated and will result "
            "in an "
            "error in a future release. To retain the behavior and silence this warning, please use dropout "
            "instead.",
            stacklevel=2,
        )
    return _drop_channels(input, p, training, inplace, batched=True)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """[N, C, D, H, W] or [C, D, H, W]: zeroes each channel with probability `p`, scales the others by 1 / (1
    - p)."""
    _check(p)
    if input.dim() not in (4, 5):
        warnings.warn(
            f"dropout3d: Received a {input.dim()}-D input to dropout3d, which is deprecated and will result "
            "in an "
            "error in a future release. To retain the behavior and silence this warning, please use dropout "
            "instead.",
            stacklevel=2,
        )
    return _drop_channels(input, p, training, inplace, batched=input.dim() != 4)


def _alpha_dropout(input: Tensor, shape: list[int], p: float, training: bool, inplace: bool) -> Tensor:
    """Sets what is dropped to selu's floor, then restores mean and variance (Klambauer et al. 2017)."""
    _check(p)
    if not training or p == 0 or input.numel() == 0:
        return input
    if p == 1:
        return input.mul_(0) if inplace else input * 0
    keep = input.new_empty(shape).bernoulli_(1 - p)
    scale = ((1 - p) * (1 + p * _SELU_FLOOR**2)) ** -0.5
    shift = (keep - 1) * (-_SELU_FLOOR * scale) - scale * _SELU_FLOOR * p
    return input.mul_(keep * scale).add_(shift) if inplace else input * (keep * scale) + shift


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps the mean and variance of what selu returns."""
    return _alpha_dropout(input, list(input.shape), p, training, inplace)


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """[N, C, *]: as `alpha_dropout`, for whole channels."""
    return _alpha_dropout(input, list(input.shape[:2]) + [1] * (input.dim() - 2), p, training, inplace)
