"""Pooling: what the core's functions need around them, and power averages."""

from __future__ import annotations

from typing import Any

from warptape import _C, Tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "lp_pool1d",
    "lp_pool2d",
    "max_pool1d",
    "max_pool2d",
]


def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """[N, C, L] or [C, L]: the maximum of each window, and with `return_indices` its place."""
    both = _C._nn.max_pool1d_with_indices(input, kernel_size, stride, padding, dilation, ceil_mode)
    return tuple(both) if return_indices else both[0]


def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """[N, C, H, W] or [C, H, W]: the maximum of each window, and with `return_indices` its flat place."""
    both = _C._nn.max_pool2d_with_indices(input, kernel_size, stride, padding, dilation, ceil_mode)
    return tuple(both) if return_indices else both[0]


def _wanted(input: Tensor, output_size: Any, spatial: int) -> Any:
    """The size asked for; None in it keeps the input's."""
    if isinstance(output_size, int) or not isinstance(input, Tensor):
        return output_size
    sizes = tuple(output_size)
    if None not in sizes:
        return sizes
    return tuple(
        have if want is None else want for have, want in zip(input.shape[-spatial:], sizes, strict=True)
    )


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """[N, C, L] or [C, L] -> [..., output_size], averages."""
    return _C._private.adaptive_avg_pool1d(input, _wanted(input, output_size, 1))


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """[N, C, H, W] or [C, H, W] -> [..., *output_size], averages; None keeps a size."""
    return _C._private.adaptive_avg_pool2d(input, _wanted(input, output_size, 2))


def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """[N, C, L] or [C, L] -> [..., output_size], maxima, and with `return_indices` their places."""
    both = _C._private.adaptive_max_pool1d(input, _wanted(input, output_size, 1))
    return tuple(both) if return_indices else both[0]


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """[N, C, H, W] or [C, H, W] -> [..., *output_size], maxima, and their flat places if wanted."""
    both = _C._private.adaptive_max_pool2d(input, _wanted(input, output_size, 2))
    return tuple(both) if return_indices else both[0]


def _finish(mean: Tensor, count: int, norm_type: float) -> Tensor:
    """Mean of x^p over windows of `count` elements -> p-norm of each; a negative sum counts as 0."""
    return _C._nn.relu(mean).mul(count).pow(1.0 / norm_type)


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: int, stride: int | None = None, ceil_mode: bool = False
) -> Tensor:
    """[N, C, L]: the `norm_type`-norm of each window."""
    mean = _C._nn.avg_pool1d(input.pow(norm_type), kernel_size, stride or kernel_size, 0, ceil_mode)
    return _finish(mean, kernel_size if isinstance(kernel_size, int) else kernel_size[0], norm_type)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """[N, C, H, W]: the `norm_type`-norm of each window."""
    height, width = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
    mean = _C._nn.avg_pool2d(input.pow(norm_type), kernel_size, stride or kernel_size, 0, ceil_mode)
    return _finish(mean, height * width, norm_type)
