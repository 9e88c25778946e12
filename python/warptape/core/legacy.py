"""PyTorch's older types: `FloatTensor(2, 3)`, `x.type("torch.LongTensor")`, `isinstance(x, ByteTensor)`."""

from __future__ import annotations

import operator
from numbers import Integral
from typing import Any

from .. import _C
from .tensor_class import Tensor

_KINDS = {
    "Float": _C.float32,
    "Double": _C.float64,
    "Half": _C.float16,
    "BFloat16": _C.bfloat16,
    "Long": _C.int64,
    "Int": _C.int32,
    "Short": _C.int16,
    "Char": _C.int8,
    "Byte": _C.uint8,
    "Bool": _C.bool,
}
_names = {dtype.__name__: kind for kind, dtype in _KINDS.items()}
_names |= {"complex64": "ComplexFloat", "complex128": "ComplexDouble"}


def _not_available(name: str) -> TypeError:
    return TypeError(f"type {name} not available. warptape was not built with CUDA.")


class _TensorType(type):
    """The class of the older types: a dtype and a kind of device, no class that a tensor has."""

    dtype: Any
    is_cuda: bool

    def __call__(cls, *args: Any, **kwargs: Any) -> Tensor:
        if cls.is_cuda and not _C._build_info()["cuda"]:
            raise _not_available(name_of(cls))
        return legacy_tensor(Tensor, args, kwargs, cls.dtype, "cuda" if cls.is_cuda else "cpu")

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor) and (instance.dtype, instance.is_cuda) == (cls.dtype, cls.is_cuda)


def make_types(module: str, is_cuda: bool) -> dict[str, type]:
    """FloatTensor and the other types, of host memory or of GPUs.

    Args:
        module: their `__module__`.
        is_cuda: whether they are of GPUs.
    """
    shared = {"__module__": module, "is_cuda": is_cuda, "is_sparse": False, "is_xpu": False}
    shared["layout"] = _C.strided
    text = "A tensor of {}, as older programs make it."
    return {
        f"{kind}Tensor": _TensorType(
            f"{kind}Tensor", (), {**shared, "dtype": dtype, "__doc__": text.format(dtype)}
        )
        for kind, dtype in _KINDS.items()
    }


types = make_types("warptape", False)


def name_of(t: Any) -> str:
    """`torch.FloatTensor` or another type, of a tensor or an older type: what Tensor.type() returns.

    Args:
        t: a tensor or a type.
    """
    return f"torch.{'cuda.' if t.is_cuda else ''}{_names[t.dtype.__name__]}Tensor"


def dtype_and_device(kind: type | str) -> tuple[Any, str | None]:
    """What Tensor.type(kind) converts to: `kind` is a dtype, an older type, or the name of one;
    Tensor is the default dtype.

    Raises:
        ValueError: a name of no type.
    """
    if kind is Tensor or kind == "torch.Tensor":
        return _C._get_default_dtype(), None
    if isinstance(kind, _TensorType):
        kind = name_of(kind)
    if not isinstance(kind, str):
        return kind, None
    place, _, last = kind.rpartition(".")
    dtype = _KINDS.get(last.removesuffix("Tensor")) if last.endswith("Tensor") else None
    if place not in ("torch", "torch.cuda") or dtype is None:
        raise ValueError(f"invalid type: {kind!r}")
    return dtype, "cuda" if place == "torch.cuda" else "cpu"


def set_default_tensor_type(t: type | str, /) -> None:
    """Sets the dtype of new floating tensors, and where they are made, by an older type or its name.

    Raises:
        TypeError: not a floating type, or one of GPUs in a build without them.
    """
    dtype, device = dtype_and_device(t)
    if device is None or not dtype.is_floating_point:
        raise TypeError("only floating-point types are supported as the default type")
    if device == "cuda" and not _C._build_info()["cuda"]:
        raise _not_available(t if isinstance(t, str) else name_of(t))
    _C._set_default_dtype(dtype)
    _C._set_default_device(device)


def legacy_tensor(
    cls: type,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dtype: _C.dtype | None = None,
    device: Any = None,
) -> Tensor:
    """`Tensor(2, 3)` is uninitialised, `Tensor([..])` has data, `Tensor(t)` is another object for `t`.

    Without a dtype it is the default one, and `t` may have any.
    """
    asked = kwargs.pop("device", None)
    if asked is not None and _C.device(asked).type != _C.device(device or "cpu").type:
        raise RuntimeError(
            f"legacy constructor expects device type: {device or 'cpu'} but device type: "
            f"{_C.device(asked).type} was passed"
        )
    if len(kwargs) == 1 and not args and set(kwargs) <= {"size", "data"}:
        args = tuple(kwargs["size"]) if "size" in kwargs else (kwargs["data"],)
    elif kwargs:
        raise TypeError(f"new() got an unexpected keyword argument {next(iter(kwargs))!r}")
    wanted = dtype or _C._get_default_dtype()
    if len(args) == 1 and not isinstance(args[0], Integral):
        t = _from_data(args[0], dtype, wanted, device)
    else:
        try:
            sizes = tuple(map(operator.index, args or (0,)))
        except TypeError:
            raise TypeError(
                f"new() received an invalid combination of arguments - got {args}, but expected sizes that "
                "are ints, or one sequence or tensor"
            ) from None
        t = _C._functions.empty(sizes, dtype=wanted, device=device)
    return t if cls is Tensor else Tensor._make_subclass(cls, t, False)


def _from_data(data: Any, dtype: _C.dtype | None, wanted: Any, device: Any) -> Tensor:
    if isinstance(data, _C.Size):
        return _C._functions.empty(tuple(data), dtype=wanted, device=device)
    if isinstance(data, Tensor):
        if dtype is not None and data.dtype != dtype:
            raise TypeError(f"new(): expected a tensor of {dtype}, got one of {data.dtype}; use .to({dtype})")
        return data.detach()
    if hasattr(data, "untyped"):  # a typed storage; their module imports this one
        return _C._functions.empty(0, dtype=wanted, device=device).set_(data)
    if isinstance(data, str):
        raise TypeError(f"new(): invalid data type {type(data).__name__!r}")
    if not hasattr(data, "__len__") and not hasattr(data, "__array__"):
        raise TypeError(f"new(): data must be a sequence (got {type(data).__name__})")
    return _C._tensor(data, wanted, device, False, False)
