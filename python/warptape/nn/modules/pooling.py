"""Pooling. Legend: N batch, C channels, L length, D depth, H height, W width; inputs may lack N."""

from __future__ import annotations

from typing import Any

from warptape import Tensor

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
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
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
    """[N, C, D, H, W] -> [N, C, Dout, Hout, Wout], the largest value of each window."""

    _n = 3


class _MaxUnpoolNd(Module):
    """The inverse of a max pooling, given its indices: zeros where no maximum was."""

    _n: int
    _shown = ("kernel_size", "stride", "padding")

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        self.kernel_size = each(kernel_size, self._n)
        self.stride = each(stride if stride is not None else kernel_size, self._n)
        self.padding = each(padding, self._n)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        function = getattr(F, f"max_unpool{self._n}d")
        return function(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool1d(_MaxUnpoolNd):
    """[N, C, L] and the indices of a MaxPool1d -> [N, C, Lin]; `output_size` tells apart what fits."""

    _n = 1


class MaxUnpool2d(_MaxUnpoolNd):
    """[N, C, H, W] and the indices of a MaxPool2d -> [N, C, Hin, Win]."""

    _n = 2


class MaxUnpool3d(_MaxUnpoolNd):
    """[N, C, D, H, W] and the indices of a MaxPool3d -> [N, C, Din, Hin, Win]."""

    _n = 3


class _FractionalMaxPool(Module):
    _n: int

    def __init__(
        self,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:
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
    Max-Pooling", section 2); `output_ratio` gives the size as parts of the input's."""

    _n = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """[N, C, D, H, W] -> [N, C, *output_size], as FractionalMaxPool2d."""

    _n = 3


class AvgPool1d(Module):
    """[N, C, L] -> [N, C, Lout], the mean of each window; padding counts if `count_include_pad`, as zeros.

    >>> nn.AvgPool1d(2)(torch.tensor([[1.0, 3.0, 2.0, 4.0]]))
    tensor([[2., 3.]])
    """

    _shown = ("kernel_size", "stride", "padding")

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
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
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
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
    """[N, C, D, H, W] -> [N, C, Dout, Hout, Wout], the mean of each window."""

    _n = 3


class _AdaptiveAvgPoolNd(Module):
    _n: int
    _shown = ("output_size",)

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Any:
        return getattr(F, f"adaptive_avg_pool{self._n}d")(input, self.output_size)


class AdaptiveAvgPool1d(_AdaptiveAvgPoolNd):
    """[N, C, L] -> [N, C, output_size], means of windows that cover the input evenly."""

    _n = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPoolNd):
    """[N, C, H, W] -> [N, C, *output_size], means of windows that cover the input evenly; None keeps one.

    >>> nn.AdaptiveAvgPool2d((1, 1))(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 3, 1, 1])
    """

    _n = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPoolNd):
    """[N, C, D, H, W] -> [N, C, *output_size], as AdaptiveAvgPool2d."""

    _n = 3


class _AdaptiveMaxPoolNd(_AdaptiveAvgPoolNd):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        return getattr(F, f"adaptive_max_pool{self._n}d")(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPoolNd):
    """[N, C, L] -> [N, C, output_size], the largest values of windows that cover the input evenly."""

    _n = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPoolNd):
    """[N, C, H, W] -> [N, C, *output_size], the largest values of windows that cover the input evenly."""

    _n = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPoolNd):
    """[N, C, D, H, W] -> [N, C, *output_size], the largest values of windows that cover the input evenly."""

    _n = 3


class _LPPoolNd(Module):
    _n: int
    _shown = ("norm_type", "kernel_size", "stride", "ceil_mode")

    def __init__(
        self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        sizes = (float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)
        return getattr(F, f"lp_pool{self._n}d")(input, *sizes)


class LPPool1d(_LPPoolNd):
    """[N, C, L] -> [N, C, Lout], the `norm_type`-norm of each window."""

    _n = 1


class LPPool2d(_LPPoolNd):
    """[N, C, H, W] -> [N, C, Hout, Wout], the `norm_type`-norm of each window."""

    _n = 2


class LPPool3d(_LPPoolNd):
    """[N, C, D, H, W] -> [N, C, Dout, Hout, Wout], the `norm_type`-norm of each window."""

    _n = 3
