"""The windows of images as columns, and back. Legend: N batch, C channels, H height, W width, L windows."""

from __future__ import annotations

from typing import Any

from warptape import Tensor

from .. import functional as F
from .module import Module

__all__ = ["Fold", "Unfold"]


class _Windows(Module):
    _shown = ("kernel_size", "dilation", "padding", "stride")

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride


class Unfold(_Windows):
    """[N, C, H, W] -> [N, C * KH * KW, L]: a column for each window."""

    def forward(self, input: Tensor) -> Tensor:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(_Windows):
    """[N, C * KH * KW, L] -> [N, C, *output_size]: columns added up where Unfold takes them from."""

    def __init__(
        self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        sizes = (self.output_size, self.kernel_size)
        return F.fold(input, *sizes, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"
