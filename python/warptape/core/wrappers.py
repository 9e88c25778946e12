"""Tensors of classes that implement `__torch_dispatch__` and hold what they stand for as attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _C
from .grad_mode import no_grad


def make_wrapper_subclass(
    cls: type,
    size: Sequence[int],
    strides: Sequence[int] | None = None,
    storage_offset: int | None = None,
    memory_format: Any = None,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    dispatch_sizes_strides_policy: str | None = None,
    dispatch_device: bool = False,
    dispatch_layout: bool = False,
    _extra_dispatch_keys: Any = None,
    storage_size: int | None = None,
) -> Any:
    """A tensor of `cls` without memory of its own: an op on it is a call of `cls.__torch_dispatch__`.

    Args:
        cls: implements `__torch_dispatch__(cls, func, types, args=(), kwargs=None)`.
        size, strides: of the tensor; without strides it is contiguous.
        storage_offset: told to those who ask.
        memory_format: how it lies where no strides are given.
        dtype, device: of the tensor; the defaults are those of `empty`.
        layout: `torch.strided`.
        pin_memory: not supported.
        requires_grad: whether it is a leaf that gets a gradient.
        dispatch_sizes_strides_policy, dispatch_device, dispatch_layout: taken and not looked at: a class is
            not asked for what the tensor says of itself.
        _extra_dispatch_keys, storage_size: likewise.

    Raises:
        RuntimeError: the class does not implement `__torch_dispatch__`.
        TypeError: it is no class of tensors.

    Example::

        >>> class Half(torch.Tensor):
        ...     @staticmethod
        ...     def __new__(cls, codes):
        ...         made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        ...         made.codes = codes
        ...         return made
        ...     __torch_function__ = torch._C._disabled_torch_function_impl
        ...     @classmethod
        ...     def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        ...         return func(*[a.codes / 2 if isinstance(a, cls) else a for a in args], **kwargs)
        >>> Half(torch.tensor([2.0, 4.0])) + 1
        tensor([2., 3.])
    """
    if pin_memory:
        raise NotImplementedError("_make_wrapper_subclass: a tensor without memory cannot be pinned")
    if strides is None and memory_format is not None:
        strides = _C._functions.empty(tuple(size), device="meta", memory_format=memory_format).stride()
    dtype = dtype or _C._get_default_dtype()
    device = _C._functions.empty(0, device=device).device
    return _C._make_wrapper(cls, size, strides, storage_offset or 0, dtype, device, requires_grad)


def rebuild_wrapper_subclass(
    cls: type,
    dtype: Any,
    size: Any,
    stride: Any,
    storage_offset: int,
    layout: Any,
    device: Any,
    requires_grad: bool,
) -> Any:
    """Unpickles such a tensor; its attributes follow.

    Args:
        cls, dtype, size, stride, storage_offset, layout, device, requires_grad: of make_wrapper_subclass.
    """
    return make_wrapper_subclass(
        cls, size, stride, storage_offset, dtype=dtype, device=device, requires_grad=requires_grad
    )


def reduced(t: Any) -> tuple[Any, ...]:
    """What `__reduce_ex__` gives for a tensor that is_wrapper; its attributes hold the data.

    Args:
        t: the tensor.
    """
    place = (t.dtype, t.shape, t.stride(), t.storage_offset(), t.layout, t.device, t.requires_grad)
    return rebuild_wrapper_subclass, (type(t), *place), t.__dict__


def cloned(t: Any) -> Any:
    """A clone without history.

    Args:
        t: a tensor.
    """
    with no_grad():
        return t.clone()


def is_wrapper(t: Any) -> bool:
    """Whether ops on a tensor are calls of its class.

    Args:
        t: a tensor.
    """
    return _C._any_dispatches((t,), {})
