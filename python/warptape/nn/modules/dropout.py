"""Layers that zero values at random while `training`."""

from __future__ import annotations

from typing import Any

from warptape.core import Tensor

from .. import functional as F
from .module import Module

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


class _DropoutNd(Module):
    _function: Any
    _shown = ("p", "inplace")

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        """Of a probability.

        Args:
            p: the probability with which an element, or a channel, is zeroed.
            inplace: whether the input itself is changed.

        Raises: ValueError unless p lies between 0 and 1.
        """
        super().__init__()
        if p < 0 or p > 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        return self._function(input, self.p, self.training, self.inplace)


class Dropout(_DropoutNd):
    """Zeroes each element with probability `p` and scales the others by 1 / (1 - p).

    In eval mode the input passes unchanged (Srivastava et al., "Dropout", 2014).

    Args:
        p: the probability with which an element is zeroed.
        inplace: whether the input itself is changed.

    >>> nn.Dropout(0.5).eval()(torch.ones(3))
    tensor([1., 1., 1.])
    """

    _function = F.dropout


class Dropout1d(_DropoutNd):
    """[N, C, L] or [C, L]: zeroes each channel with probability `p` and scales the others by 1 / (1 - p).

    Neighbours in a channel are often alike: to drop a few of them hides little, so all go at once.

    Args:
        p: the probability with which a channel of a sample is zeroed.
        inplace: whether the input itself is changed.

    >>> nn.Dropout1d(1.0)(torch.ones(1, 2, 3)).sum()
    tensor(0.)
    """

    _function = F.dropout1d


class Dropout2d(_DropoutNd):
    """[N, C, H, W]: zeroes each channel with probability `p` and scales the others by 1 / (1 - p).

    Args:
        p: the probability with which a channel of a sample is zeroed.
        inplace: whether the input itself is changed.

    >>> nn.Dropout2d(0.5)(torch.ones(1, 3, 4, 4)).shape
    torch.Size([1, 3, 4, 4])
    """

    _function = F.dropout2d


class Dropout3d(_DropoutNd):
    """[N, C, D, H, W] or [C, D, H, W]: as Dropout2d.

    Args:
        p: the probability with which a channel of a sample is zeroed.
        inplace: whether the input itself is changed.

    >>> nn.Dropout3d(0.5).eval()(torch.ones(1, 1, 1, 1, 2))
    tensor([[[[[1., 1.]]]]])
    """

    _function = F.dropout3d


class AlphaDropout(_DropoutNd):
    """Dropout that keeps the mean and variance of what SELU returns (Klambauer et al. 2017).

    A dropped element becomes SELU's limit for negative inputs, not 0. A scale and a shift then restore both
    moments.

    Args:
        p: the probability with which an element is dropped.
        inplace: whether the input itself is changed.

    >>> x = nn.SELU()(torch.randn(100000))
    >>> abs(nn.AlphaDropout(0.2)(x).var().item() - 1) < 0.05
    True
    """

    _function = F.alpha_dropout


class FeatureAlphaDropout(_DropoutNd):
    """[N, C, *]: AlphaDropout of whole channels.

    Args:
        p: the probability with which a channel of a sample is dropped.
        inplace: whether the input itself is changed.

    >>> nn.FeatureAlphaDropout(0.5).eval()(torch.ones(1, 2, 3)).shape
    torch.Size([1, 2, 3])
    """

    _function = F.feature_alpha_dropout
