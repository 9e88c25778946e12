"""Names of torch._utils that libraries use: lists of tensors as one, devices' numbers, errors of workers."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from warptape import _C, compiler, cuda
from warptape import core as wt
from warptape.core import Tensor, offered
from warptape.serialization import names as _names
from warptape.torch.of_root import _debug_has_internal_overlap, _grouped_mm, _jit_setting  # noqa: F401

if TYPE_CHECKING:
    from warptape.core.types import Device

_rebuild_tensor = _names.rebuild_tensor
_rebuild_tensor_v2 = _names.rebuild_tensor_v2
_rebuild_tensor_v3 = _names.rebuild_tensor_v3
_rebuild_parameter = _names.rebuild_parameter
_rebuild_meta_tensor_no_storage = _names.rebuild_meta_tensor
_rebuild_sparse_tensor = _names.rebuild_sparse


def _element_size(dtype: _C.dtype) -> int:
    """Bytes of an element. RuntimeError for what is no dtype."""
    if not isinstance(dtype, _C.dtype):
        raise RuntimeError(f"expected torch.dtype, but got {type(dtype)}")
    return dtype.itemsize


def _flatten_dense_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """All elements of tensors of one dtype, one after the other: [sum of their numel()]."""
    return wt.cat([t.reshape(-1) for t in tensors]) if tensors else wt.empty(0)


def _unflatten_dense_tensors(flat: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Views of `flat`, with the shapes of `tensors`."""
    parts = flat.split([t.numel() for t in tensors])
    return tuple(part.view(t.shape) for part, t in zip(parts, tensors, strict=True))


def _reorder_tensors_as(tensors: Sequence[Tensor], ordered: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`tensors`, which are `ordered` sorted by type, in the order of `ordered`."""
    by_type: dict[str, Iterator[Tensor]] = {}
    for kind in {t.type() for t in tensors}:
        by_type[kind] = iter([t for t in tensors if t.type() == kind])
    return tuple(next(by_type[t.type()]) for t in ordered)


def _take_tensors(tensors: Iterable[Tensor], size_limit: int) -> Iterator[list[Tensor]]:
    """Chunks of tensors of one type, each at most `size_limit` bytes but for single larger tensors."""
    chunks: dict[str, tuple[list[Tensor], int]] = {}
    for t in tensors:
        size = t.numel() * t.element_size()
        chunk, used = chunks.get(t.type(), ([], 0))
        if chunk and used + size > size_limit:
            yield chunk
            chunk, used = [], 0
        chunks[t.type()] = ([*chunk, t], used + size)
    yield from (chunk for chunk, _ in chunks.values() if chunk)


def _get_device_index(device: Device, optional: bool = False, allow_cpu: bool = False) -> int:
    """The number of a device given as a device, text or number; -1 for the CPU where that is allowed.

    Raises:
        ValueError: another kind of device, or none where `optional` is not set.
    """
    if isinstance(device, int):
        return device
    if device is None and optional:
        return cuda.current_device() if cuda.is_available() else -1
    if not isinstance(device, (str, _C.device)):
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
    place = _C.device(device)
    if place.type == "cpu" and not allow_cpu:
        raise ValueError(f"Expected a non cpu device, but got: {place}")
    if place.index is not None or place.type == "cpu":
        return -1 if place.index is None else place.index
    if not optional:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
    return cuda.current_device()


def _get_all_device_indices() -> list[int]:
    """The numbers of the CUDA devices."""
    return list(range(cuda.device_count()))


def _get_available_device_type() -> str | None:
    """ "cuda", or None where there is no such device."""
    return "cuda" if cuda.is_available() else None


class KeyErrorMessage(str):
    """The text of a KeyError, with its lines as lines."""

    __slots__ = ()

    def __repr__(self) -> str:
        return self


class ExceptionWrapper:
    """An error of a thread or worker with its traceback as text, to be raised again elsewhere."""

    def __init__(self, exc_info: Any = None, where: str = "in background") -> None:
        kind, error, trace = sys.exc_info() if exc_info is None else exc_info
        self.exc_type: Any = kind
        self.where = where
        self.exc_msg = "".join(traceback.format_exception(kind, error, trace))

    def reraise(self) -> None:
        """Raises an error of the same class, with the text of the first; RuntimeError where that is not
        possible."""
        text = f"Caught {self.exc_type.__name__} {self.where}.\nOriginal {self.exc_msg}"
        if self.exc_type is KeyError:
            raise KeyError(KeyErrorMessage(text))
        if getattr(self.exc_type, "message", None):
            raise self.exc_type(message=text)
        try:
            error = self.exc_type(text)
        except Exception:  # its constructor takes other arguments
            raise RuntimeError(text) from None
        raise error


def _get_device_module(device_type: str) -> Any:
    """torch.cuda for "cuda", and so on. RuntimeError for a device that has no module."""
    module = getattr(offered("root"), device_type, None)
    if module is None:
        raise RuntimeError(
            f"Device '{device_type}' does not have a corresponding module registered as "
            f"'torch.{device_type}'."
        )
    return module


def _type(self: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """`Tensor.type` as a function."""
    return self.type(dtype, non_blocking=non_blocking, **kwargs)


def _import_dotted_name(name: str) -> Any:
    """The object behind a dotted path."""
    head, *rest = name.split(".")
    value = __import__(head)
    for part in rest:
        value = getattr(value, part)
    return value


class classproperty:
    """A property of a class, read by `cls.name`."""

    def __init__(self, func: Any) -> None:
        self.func = func

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self.func(type(instance) if owner is None else owner)


def is_compiling() -> bool:
    """Whether a compiler follows the program."""
    return compiler.is_compiling()
