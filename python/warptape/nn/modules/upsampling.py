"""Layers that change the size of images. Legend: N batch, C channels; space is L, H x W or D x H x W."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape.core import Tensor

from .. import functional as F
from .module import Module

__all__ = ["Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"]


class Upsample(Module):
    """[N, C, *space] -> [N, C, *size], or space times `scale_factor`; `mode` is what F.interpolate takes.

    Args:
        size: the size in space of the result, one number or one for each dimension.
        scale_factor: by how much each dimension grows; exactly one of the two is given.
        mode: 'nearest', 'nearest-exact', 'linear' (3-D input), 'bilinear' or 'bicubic' (4-D), 'trilinear'
            (5-D), 'area'.
        align_corners: whether the values at the corners stay where they are, for the linear and cubic modes.
        recompute_scale_factor: whether positions come from the rounded sizes, not from scale_factor.

    >>> nn.Upsample(scale_factor=2)(torch.zeros(1, 3, 4, 4)).shape
    torch.Size([1, 3, 8, 8])
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.name = type(self).__name__
        self.size, self.mode, self.align_corners = size, mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor
        if isinstance(scale_factor, tuple):
            self.scale_factor: Any = tuple(float(f) for f in scale_factor)
        else:
            self.scale_factor = float(scale_factor) if scale_factor else None

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(
            input,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            recompute_scale_factor=self.recompute_scale_factor,
        )

    def extra_repr(self) -> str:
        how = f"scale_factor={self.scale_factor}" if self.scale_factor is not None else f"size={self.size}"
        return f"{how}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """[N, C, H, W]: each value repeated.

    Args:
        size: height and width of the result, or one number for both.
        scale_factor: by how much both grow, in place of size.

    >>> nn.UpsamplingNearest2d(scale_factor=2)(torch.tensor([[[[1.0, 2.0]]]]))
    tensor([[[[1., 1., 2., 2.],
              [1., 1., 2., 2.]]]])
    """

    def __init__(self, size: int | Sequence[int] | None = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """[N, C, H, W]: values between their neighbours, corners kept.

    Args:
        size: height and width of the result, or one number for both.
        scale_factor: by how much both grow, in place of size.

    >>> nn.UpsamplingBilinear2d(size=(1, 3))(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[[[1., 2., 3.]]]])
    """

    def __init__(self, size: int | Sequence[int] | None = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)
