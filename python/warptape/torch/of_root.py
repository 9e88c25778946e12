"""Functions of torch itself that libraries call by PyTorch's internal names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warptape.core import Tensor
from warptape.nn import functional

if TYPE_CHECKING:
    from warptape import core as wt


def _jit_setting(enabled: bool, /) -> bool:
    """Switches of TorchScript's executor, which is not here; what they were: off."""
    return False


def _jit_off() -> bool:
    """False: TorchScript's executor fuses nothing, for it is not here."""
    return False


def _debug_has_internal_overlap(t: Tensor) -> int:
    """0 where no two elements lie in one place, 1 where some do, 2 where sizes and strides do not tell."""
    extent = 1
    sizes = [(stride, size) for stride, size in zip(t.stride(), t.shape) if size != 1]
    for stride, size in sorted(sizes):
        if stride != extent:
            return 1 if any(stride == 0 and size > 1 for stride, size in sizes) else 2
        extent *= size
    return 0


def _grouped_mm(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: wt.dtype | None = None,
) -> Tensor:
    """nn.functional.grouped_mm, as it was called before it had a public name."""
    return functional.grouped_mm(self, mat2, offs=offs, bias=bias, out_dtype=out_dtype)
