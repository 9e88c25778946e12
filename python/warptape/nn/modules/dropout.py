"""Layers that zero values at random while `training`."""

from __future__ import annotations

from typing import Any

from warptape import Tensor

from .. import functional as F
from .module import Module

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


class _DropoutNd(Module):
    _function: Any
    _shown = ("p", "inplace")

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if p < 0 or p > 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        return self._function(input, self.p, self.training, self.inplace)


class Dropout(_DropoutNd):
    """Zeroes each element with probability `p` and scales the others by 1 / (1 - p).

    >>> nn.Dropout(0.5).eval()(torch.ones(3))
    tensor([1., 1., 1.])
    """

    _function = F.dropout


class Dropout1d(_DropoutNd):
    """[N, C, L] or [C, L]: zeroes each channel with probability `p` and scales the others by 1 / (1 - p)."""

    _function = F.dropout1d


class Dropout2d(_DropoutNd):
    """[N, C, H, W]: zeroes each channel with probability `p` and scales the others by 1 / (1 - p).

    >>> nn.Dropout2d(0.5)(torch.ones(1, 3, 4, 4)).shape
    torch.Size([1, 3, 4, 4])
    """

    _function = F.dropout2d


class Dropout3d(_DropoutNd):
    """[N, C, D, H, W] or [C, D, H, W]: as Dropout2d."""

    _function = F.dropout3d


class AlphaDropout(_DropoutNd):
    """Dropout that keeps the mean and variance of what SELU returns (Klambauer et al. 2017)."""

    _function = F.alpha_dropout


class FeatureAlphaDropout(_DropoutNd):
    """[N, C, *]: AlphaDropout of whole channels."""

    _function = F.feature_alpha_dropout
