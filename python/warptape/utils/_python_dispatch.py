"""What torch.utils._python_dispatch tells libraries: no tensor is made of others, no mode sees every op."""

from __future__ import annotations

from typing import Any

from .._missing import unusable
from .._tensor import Tensor

TorchDispatchMode = unusable(
    "torch.utils._python_dispatch.TorchDispatchMode", "ops have no dispatcher; see torch.overrides"
)


def is_traceable_wrapper_subclass(t: object) -> bool:
    """Whether `t` is a tensor of a class with `__tensor_flatten__` and `__tensor_unflatten__`."""
    cls = t if isinstance(t, type) else type(t)
    return (
        issubclass(cls, Tensor)
        and cls is not Tensor
        and hasattr(cls, "__tensor_flatten__")
        and hasattr(cls, "__tensor_unflatten__")
    )


def is_traceable_wrapper_subclass_type(t: type) -> bool:
    """Whether tensors of class `t` are such."""
    return is_traceable_wrapper_subclass(t)


def transform_subclass(t: Any, callback: Any, outer_size: Any = None, outer_stride: Any = None) -> Any:
    """A tensor like `t`, whose inner tensors are `callback(name, inner)`."""
    names, context = t.__tensor_flatten__()
    inner = {name: callback(name, getattr(t, name)) for name in names}
    size = t.size() if outer_size is None else outer_size
    stride = t.stride() if outer_stride is None else outer_stride
    return type(t).__tensor_unflatten__(inner, context, size, stride)
