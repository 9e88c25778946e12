"""Power-average pooling."""

from __future__ import annotations

from typing import Any

from warptape import _C, Tensor

__all__ = ["lp_pool1d", "lp_pool2d"]


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
