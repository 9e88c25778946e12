"""What torch.utils._foreach_utils tells libraries: where lists of tensors are worked on at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from warptape import _C
from warptape.core import Tensor

TensorListList: TypeAlias = list[list[Tensor | None]]
Indices: TypeAlias = list[int]


def _get_foreach_kernels_supported_devices() -> list[str]:
    """Kinds of devices on which optimizers take lists by default."""
    return ["cuda"]


def _get_fused_kernels_supported_devices() -> list[str]:
    """Kinds of devices that have fused optimizers."""
    return ["cuda", "cpu"]


def _device_has_foreach_support(device: _C.device) -> bool:
    """Whether lists can be given on a device."""
    return device.type in (*_get_foreach_kernels_supported_devices(), "cpu")


def _has_foreach_support(tensors: list[Tensor], device: _C.device) -> bool:
    """Whether lists of these tensors can be given on a device."""
    return _device_has_foreach_support(device) and all(t is None or type(t) is Tensor for t in tensors)


def _group_tensors_by_device_and_dtype(
    tensorlistlist: TensorListList, with_indices: bool = False
) -> dict[tuple[Any, Any], tuple[TensorListList, Indices]]:
    """The columns of several lists, by the device and dtype of the first list's tensors.

    Each value has the lists with those columns alone and, with `with_indices`, their numbers.
    """
    groups: dict[tuple[Any, Any], tuple[TensorListList, Indices]] = {}
    for i, column in enumerate(zip(*tensorlistlist, strict=True)):
        first: Sequence[Tensor | None] = column[:1]
        key = (first[0].device, first[0].dtype) if first and first[0] is not None else (None, None)
        lists, indices = groups.setdefault(key, ([[] for _ in tensorlistlist], []))
        for one, t in zip(lists, column, strict=True):
            one.append(t)
        if with_indices:
            indices.append(i)
    return groups
