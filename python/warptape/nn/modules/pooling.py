"""Pooling. Legend: N batch, C channels, L length, D depth, H height, W width; inputs may lack N."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape.core import Tensor

from .. import functional as F
from ._sizes import each
from .module import Module

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]


class _MaxPoolNd(Module):
    """The largest value of each window; with `return_indices` also where it stood. Stride: kernel_size."""

    _n: int
    _shown = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        """Pooling by windows; padding never wins, as it counts as minus infinity.

        Args:
            kernel_size: the window's size, one number or one for each dimension of space.
            stride: the distance of neighbouring windows; kernel_size if None.
            padding: elements added on both sides, at most half the kernel.
            dilation: the distance of neighbouring elements of a window.
            return_indices: whether forward returns (values, indices); an index counts within a channel's
                flattened space.
            ceil_mode: whether a last window that does not fit whole counts, too.
        """
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride if stride is not None else kernel_size
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        return getattr(F, f"max_pool{self._n}d")(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            ceil_mode=self.ceil_mode,
            return_indices=self.return_indices,
        )


class MaxPool1d(_MaxPoolNd):
    """[N, C, L] -> [N, C, Lout], the largest value of each window.

    >>> nn.MaxPool1d(2)(torch.tensor([[1.0, 3.0, 2.0, 4.0]]))
    tensor([[3., 4.]])
    """

    _n = 1


class MaxPool2d(_MaxPoolNd):
    """[N, C, H, W] -> [N, C, Hout, Wout], the largest value of each window.

    >>> nn.MaxPool2d(2)(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 3, 4, 4])
    """

    _n = 2


class MaxPool3d(_MaxPoolNd):
    """[N, C, D, H, W] -> [N, C, Dout, Hout, Wout], the largest value of each window.

    >>> nn.MaxPool3d(2)(torch.zeros(1, 3, 8, 8, 8)).shape
    torch.Size([1, 3, 4, 4, 4])
    """

    _n = 3


class _MaxUnpoolNd(Module):
    """The inverse of a max pooling, given its indices: zeros where no maximum was."""

    _n: int
    _shown = ("kernel_size", "stride", "padding")

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
    ) -> None:
        """The sizes of the pooling that is undone.

        Args:
            kernel_size: the window's size, one number or one for each dimension of space.
            stride: the distance of neighbouring windows; kernel_size if None.
            padding: elements that the pooling added on both sides.
        """
        super().__init__()
        self.kernel_size = each(kernel_size, self._n)
        self.stride = each(stride if stride is not None else kernel_size, self._n)
        self.padding = each(padding, self._n)

    def forward(
        self, input: Tensor, indices: Tensor, output_size: int | Sequence[int] | None = None
    ) -> Tensor:
        function = getattr(F, f"max_unpool{self._n}d")
        return function(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool1d(_MaxUnpoolNd):
    """[N, C, L] and the indices of a MaxPool1d -> [N, C, Lin]; `output_size` tells apart what fits.

    >>> values, at = nn.MaxPool1d(2, return_indices=True)(torch.tensor([[1.0, 3.0, 4.0, 2.0]]))
    >>> nn.MaxUnpool1d(2)(values, at)
    tensor([[0., 3., 4., 0.]])
    """

    _n = 1


class MaxUnpool2d(_MaxUnpoolNd):
    """[N, C, H, W] and the indices of a MaxPool2d -> [N, C, Hin, Win].

    Places that were no maximum become zero; forward takes `output_size` where several inputs give the same
    size.

    >>> values, at = nn.MaxPool2d(2, return_indices=True)(torch.randn(1, 3, 4, 4))
    >>> nn.MaxUnpool2d(2)(values, at).shape
    torch.Size([1, 3, 4, 4])
    """

    _n = 2


class MaxUnpool3d(_MaxUnpoolNd):
    """[N, C, D, H, W] and the indices of a MaxPool3d -> [N, C, Din, Hin, Win].

    Places that were no maximum become zero; forward takes `output_size` where several inputs give the same
    size.

    >>> values, at = nn.MaxPool3d(2, return_indices=True)(torch.randn(1, 3, 4, 4, 4))
    >>> nn.MaxUnpool3d(2)(values, at).shape
    torch.Size([1, 3, 4, 4, 4])
    """

    _n = 3


class _FractionalMaxPool(Module):
    _n: int

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        output_size: int | Sequence[int] | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:
        """Windows of one size, at distances drawn anew in each forward.

        Args:
            kernel_size: the window's size, one number or one for each dimension of space.
            output_size: the size of the result in space.
            output_ratio: the same as a share of the input's size, between 0 and 1; exactly one of the two is
                given.
            return_indices: whether forward returns (values, indices).
            _random_samples: [N, C, dims] numbers in [0, 1) that place the windows, in place of drawn ones.

        Raises: ValueError unless exactly one of output_size and output_ratio is given, or for a ratio outside
        (0, 1).
        """
        super().__init__()
        name = type(self).__name__
        if (output_size is None) == (output_ratio is None):
            what = "either an output size, or" if output_size is None else "only one of output_size and"
            raise ValueError(f"{name} requires specifying {what} an output ratio")
        self.kernel_size = each(kernel_size, self._n)
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = None if output_size is None else each(output_size, self._n)
        self.output_ratio = None if output_ratio is None else each(output_ratio, self._n)
        if self.output_ratio is not None and not all(0 < ratio < 1 for ratio in self.output_ratio):
            raise ValueError(f"output_ratio must be between 0 and 1 (got {output_ratio})")

    def forward(self, input: Tensor) -> Any:
        function = getattr(F, f"fractional_max_pool{self._n}d")
        sizes = (self.kernel_size, self.output_size, self.output_ratio)
        return function(input, *sizes, self.return_indices, self._random_samples)


class FractionalMaxPool2d(_FractionalMaxPool):
    """[N, C, H, W] -> [N, C, *output_size]: maxima of windows at pseudo-random distances ("Fractional
    Max-Pooling", section 2); `output_ratio` gives the size as parts of the input's.

    >>> nn.FractionalMaxPool2d(2, output_ratio=0.7)(torch.randn(1, 3, 10, 10)).shape
    torch.Size([1, 3, 7, 7])
    """

    _n = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """[N, C, D, H, W] -> [N, C, *output_size], as FractionalMaxPool2d.

    >>> nn.FractionalMaxPool3d(2, output_size=3)(torch.randn(1, 2, 5, 5, 5)).shape
    torch.Size([1, 2, 3, 3, 3])
    """

    _n = 3


class AvgPool1d(Module):
    """[N, C, L] -> [N, C, Lout], the mean of each window; padding counts if `count_include_pad`, as zeros.

    Args:
        kernel_size: the number of elements of a window.
        stride: the distance of neighbouring windows; kernel_size if None.
        padding: zeros added on both sides.
        ceil_mode: whether a last window that does not fit whole counts, too.
        count_include_pad: whether the added zeros count in the divisor.

    >>> nn.AvgPool1d(2)(torch.tensor([[1.0, 3.0, 2.0, 4.0]]))
    tensor([[2., 3.]])
    """

    _shown = ("kernel_size", "stride", "padding")

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = each(kernel_size, 1)
        self.stride = each(stride if stride is not None else kernel_size, 1)
        self.padding = each(padding, 1)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


class _AvgPoolNd(Module):
    """The mean of each window; `divisor_override` divides in place of its size."""

    _n: int
    _shown = ("kernel_size", "stride", "padding")

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        """Means of windows.

        Args:
            kernel_size: the window's size, one number or one for each dimension of space.
            stride: the distance of neighbouring windows; kernel_size if None.
            padding: zeros added on both sides.
            ceil_mode: whether a last window that does not fit whole counts, too.
            count_include_pad: whether the added zeros count in the divisor.
            divisor_override: divides each sum in place of the window's size.
        """
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride if stride is not None else kernel_size
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return getattr(F, f"avg_pool{self._n}d")(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class AvgPool2d(_AvgPoolNd):
    """[N, C, H, W] -> [N, C, Hout, Wout], the mean of each window.

    >>> nn.AvgPool2d(2)(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 3, 4, 4])
    """

    _n = 2


class AvgPool3d(_AvgPoolNd):
    """[N, C, D, H, W] -> [N, C, Dout, Hout, Wout], the mean of each window.

    >>> nn.AvgPool3d(2)(torch.ones(1, 3, 8, 8, 8)).shape
    torch.Size([1, 3, 4, 4, 4])
    """

    _n = 3


class _AdaptiveAvgPoolNd(Module):
    _n: int
    _shown = ("output_size",)

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        """Output i of n sees the elements from floor(i s / n) to ceil((i + 1) s / n) of a dimension of size
        s.

        Args:
            output_size: the size of the result, one number or one for each dimension; None keeps that of the
                input.
        """
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Any:
        return getattr(F, f"adaptive_avg_pool{self._n}d")(input, self.output_size)


class AdaptiveAvgPool1d(_AdaptiveAvgPoolNd):
    """[N, C, L] -> [N, C, output_size], means of windows that cover the input evenly.

    Windows overlap where output_size does not divide L.

    >>> nn.AdaptiveAvgPool1d(2)(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[1.5000, 2.5000]])
    """

    _n = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPoolNd):
    """[N, C, H, W] -> [N, C, *output_size], means of windows that cover the input evenly; None keeps one.

    >>> nn.AdaptiveAvgPool2d((1, 1))(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 3, 1, 1])
    """

    _n = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPoolNd):
    """[N, C, D, H, W] -> [N, C, *output_size], as AdaptiveAvgPool2d.

    >>> nn.AdaptiveAvgPool3d(1)(torch.ones(1, 3, 4, 4, 4)).shape
    torch.Size([1, 3, 1, 1, 1])
    """

    _n = 3


class _AdaptiveMaxPoolNd(_AdaptiveAvgPoolNd):
    def __init__(self, output_size: int | Sequence[int | None] | None, return_indices: bool = False) -> None:
        """Output i of n sees the elements from floor(i s / n) to ceil((i + 1) s / n) of a dimension of size
        s.

        Args:
            output_size: the size of the result, one number or one for each dimension; None keeps that of the
                input.
            return_indices: whether forward returns (values, indices).
        """
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        return getattr(F, f"adaptive_max_pool{self._n}d")(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPoolNd):
    """[N, C, L] -> [N, C, output_size], the largest values of windows that cover the input evenly.

    >>> nn.AdaptiveMaxPool1d(2)(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[2., 3.]])
    """

    _n = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPoolNd):
    """[N, C, H, W] -> [N, C, *output_size], the largest values of windows that cover the input evenly.

    >>> nn.AdaptiveMaxPool2d((1, None))(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 3, 1, 8])
    """

    _n = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPoolNd):
    """[N, C, D, H, W] -> [N, C, *output_size], the largest values of windows that cover the input evenly.

    >>> nn.AdaptiveMaxPool3d(2)(torch.zeros(1, 3, 8, 8, 8)).shape
    torch.Size([1, 3, 2, 2, 2])
    """

    _n = 3


class _LPPoolNd(Module):
    _n: int
    _shown = ("norm_type", "kernel_size", "stride", "ceil_mode")

    def __init__(
        self,
        norm_type: float,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        ceil_mode: bool = False,
    ) -> None:
        """sum(x^p)^(1 / p) of each window: the sum for p = 1; for large p the maximum of positive values.

        Args:
            norm_type: p.
            kernel_size: the window's size, one number or one for each dimension of space.
            stride: the distance of neighbouring windows; kernel_size if None.
            ceil_mode: whether a last window that does not fit whole counts, too.
        """
        super().__init__()
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        sizes = (float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)
        return getattr(F, f"lp_pool{self._n}d")(input, *sizes)


class LPPool1d(_LPPoolNd):
    """[N, C, L] -> [N, C, Lout], the `norm_type`-norm of each window.

    >>> nn.LPPool1d(2, 2)(torch.tensor([[[3.0, 4.0, 0.0, 1.0]]]))
    tensor([[[5., 1.]]])
    """

    _n = 1


class LPPool2d(_LPPoolNd):
    """[N, C, H, W] -> [N, C, Hout, Wout], the `norm_type`-norm of each window.

    >>> nn.LPPool2d(2, 2)(torch.ones(1, 3, 4, 4)).shape
    torch.Size([1, 3, 2, 2])
    """

    _n = 2


class LPPool3d(_LPPoolNd):
    """[N, C, D, H, W] -> [N, C, Dout, Hout, Wout], the `norm_type`-norm of each window.

    >>> nn.LPPool3d(2, 2)(torch.ones(1, 3, 4, 4, 4)).shape
    torch.Size([1, 3, 2, 2, 2])
    """

    _n = 3
