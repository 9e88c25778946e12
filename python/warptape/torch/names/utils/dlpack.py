"""Tensors as DLPack capsules, which other libraries take over without a copy."""

from __future__ import annotations

from typing import Any

from warptape.core import Tensor, from_dlpack

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: Tensor) -> Any:
    """A capsule of the tensor's memory, for one consumer.

    Args:
        tensor: on any device, without gradients.

    >>> torch.from_dlpack(torch.utils.dlpack.to_dlpack(torch.arange(2)))
    tensor([0, 1])
    """
    return tensor.__dlpack__()
