"""The windows of images as columns, and back. Legend: N batch, C channels, H height, W width, L windows."""

from __future__ import annotations

from typing import Any

from .. import functional as F
from .module import Plain

__all__ = ["Fold", "Unfold"]


class _Windows(Plain):
    _shown: tuple[str, ...] = ("kernel_size", "dilation", "padding", "stride")

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride


class Unfold(_Windows):
    """[N, C, H, W] -> [N, C * KH * KW, L]: a column for each window."""

    _function = F.unfold


class Fold(_Windows):
    """[N, C * KH * KW, L] -> [N, C, *output_size]: columns added up where Unfold takes them from."""

    _function, _shown = F.fold, ("output_size", *_Windows._shown)

    def __init__(
        self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size
