"""The windows of images as columns, and back. Legend: N batch, C channels, H height, W width, L windows."""

from __future__ import annotations

from collections.abc import Sequence

from .. import functional as F
from .module import Plain

__all__ = ["Fold", "Unfold"]


class _Windows(Plain):
    _shown: tuple[str, ...] = ("kernel_size", "dilation", "padding", "stride")

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        stride: int | Sequence[int] = 1,
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride


class Unfold(_Windows):
    """[N, C, H, W] -> [N, C * KH * KW, L]: a column for each window.

    A matrix product with these columns is a convolution. L is the number of places where a window fits.

    Args:
        kernel_size: KH and KW, or one number for both.
        dilation: the distance of neighbouring elements of a window.
        padding: zeros added on both sides.
        stride: the distance of neighbouring windows.

    >>> nn.Unfold(2)(torch.arange(9.0).view(1, 1, 3, 3))[0]
    tensor([[0., 1., 3., 4.],
            [1., 2., 4., 5.],
            [3., 4., 6., 7.],
            [4., 5., 7., 8.]])
    """

    _function = F.unfold


class Fold(_Windows):
    """[N, C * KH * KW, L] -> [N, C, *output_size]: columns added up where Unfold takes them from.

    Where windows overlap their values are summed: Fold is the transpose of Unfold, not its inverse.

    Args:
        output_size: height and width of the result.
        kernel_size: KH and KW, or one number for both.
        dilation: the distance of neighbouring elements of a window.
        padding: zeros that Unfold added on both sides.
        stride: the distance of neighbouring windows.

    >>> nn.Fold((3, 3), 2)(torch.ones(1, 4, 4))[0, 0]
    tensor([[1., 2., 1.],
            [2., 4., 2.],
            [1., 2., 1.]])
    """

    _function, _shown = F.fold, ("output_size", *_Windows._shown)

    def __init__(
        self,
        output_size: int | Sequence[int],
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        stride: int | Sequence[int] = 1,
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size
