"""torch.distributed.checkpoint.metadata: what a checkpoint's index holds, as PyTorch's planners pass it on.

Checkpoints of this package have an index of their own (layout.py), of which `metadata()` tells.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from warptape import core as wt

from ...core import Tensor
from .load import metadata

__all__ = [
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "TensorStorageMetadata",
]

STATE_DICT_TYPE = dict[str, Any]
STORAGE_TYPES = Any


@dataclass
class ChunkStorageMetadata:
    """Where a part of a tensor begins, and its sizes."""

    offsets: Any
    sizes: Any


@dataclass
class TensorProperties:
    """What a tensor is besides its values and sizes."""

    dtype: Any = field(default_factory=wt.get_default_dtype)
    layout: Any = wt.strided
    requires_grad: bool = False
    memory_format: Any = wt.contiguous_format
    pin_memory: bool = False

    @staticmethod
    def create_from_tensor(tensor: Tensor) -> TensorProperties:
        """Those of a tensor."""
        return TensorProperties(
            tensor.dtype, tensor.layout, tensor.requires_grad, wt.contiguous_format, tensor.is_pinned()
        )


@dataclass
class TensorStorageMetadata:
    """A tensor of a checkpoint, in parts."""

    properties: TensorProperties
    size: Any
    chunks: list[ChunkStorageMetadata]


@dataclass
class BytesStorageMetadata:
    """An object of a checkpoint that is no tensor."""


@dataclass
class StorageMeta:
    """Of a whole checkpoint."""

    checkpoint_id: Any = None
    save_id: str | None = None
    load_id: str | None = None
    modules: list[str] = field(default_factory=list)


@dataclass
class Metadata:
    """The index of a checkpoint."""

    state_dict_metadata: dict[str, Any]
    planner_data: Any = None
    storage_data: Any = None
    storage_meta: StorageMeta | None = None
    version: str | None = None


@dataclass(frozen=True)
class MetadataIndex:
    """Names a part of a tensor, or an object: its name, and where the part begins. `index` is a hint."""

    fqn: str
    offset: Any = None
    index: int | None = field(hash=False, compare=False, default=None)

    def __init__(self, fqn: str, offset: Sequence[int] | None = None, index: int | None = None) -> None:
        object.__setattr__(self, "fqn", fqn)
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "offset", None if offset is None else wt.Size(offset))


class _Module(ModuleType):
    """An import of the module takes the name of the function `checkpoint.metadata`, and so is one, too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return metadata(*args, **kwargs)


sys.modules[__name__].__class__ = _Module
