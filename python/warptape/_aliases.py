"""Second names of ops, and what is a step away from one: functions and Tensor methods."""

from __future__ import annotations

import builtins
import warnings
from typing import Any

from . import _C
from ._arguments import checked, same_device
from ._tensor import Tensor

_ops = _C._functions

__all__ = [
    "arctan2",
    "diff",
    "divide",
    "is_nonzero",
    "is_signed",
    "multiply",
    "negative",
    "range",
    "ravel",
    "rsub",
    "subtract",
    "take",
    "true_divide",
    "typename",
]


def multiply(input: Tensor, other: Any, *, out: Tensor | None = None) -> Tensor:
    """`mul` under its other name."""
    return _ops.mul(input, other, out=out)


def subtract(input: Tensor, other: Any, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """`sub` under its other name."""
    return _ops.sub(input, other, alpha=alpha, out=out)


def divide(
    input: Tensor, other: Any, *, rounding_mode: str | None = None, out: Tensor | None = None
) -> Tensor:
    """`div` under its other name."""
    if rounding_mode is None:
        return _ops.div(input, other, out=out)
    return _ops.div(input, other, rounding_mode=rounding_mode, out=out)


def true_divide(input: Tensor, other: Any, *, out: Tensor | None = None) -> Tensor:
    """`div` without rounding."""
    return _ops.div(input, other, out=out)


def negative(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`neg` under its other name."""
    return _ops.neg(input, out=out)


def arctan2(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`atan2` under its other name."""
    return _ops.atan2(input, other, out=out)


def is_nonzero(input: Tensor) -> bool:
    """Whether the only element is not 0. RuntimeError for another number of elements."""
    return bool(input)


def is_signed(input: Tensor) -> bool:
    """Whether the dtype has negative numbers."""
    return input.dtype.is_signed


def typename(obj: Any) -> str:
    """The type's full name: of a tensor its dtype's, as "torch.FloatTensor"."""
    if isinstance(obj, Tensor):
        return obj.type()
    kind = obj if isinstance(obj, type) else type(obj)
    return (
        kind.__qualname__
        if kind.__module__ in ("builtins", "", None)
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def range(start: float = 0, end: Any = None, step: float = 1, **options: Any) -> Tensor:
    """Deprecated: numbers from start to end, both included; `arange` leaves out the end."""
    warnings.warn(
        "torch.range is deprecated and will be removed in a future release because its behavior is "
        "inconsistent with Python's range builtin. Instead, use torch.arange, which produces values in "
        "[start, end).",
        UserWarning,
        stacklevel=3,
    )
    if end is None:
        start, end = 0, start
    if step == 0 or (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    options.setdefault("dtype", _C._get_default_dtype())
    n = int((end - start) / step) + 1
    return _ops.arange(n, device=options.pop("device", None)).to(options.pop("dtype")) * step + start


def rsub(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """other - alpha * input; `other` is a tensor that broadcasts with `input`, or a number."""
    if isinstance(other, Tensor):
        return _ops.sub(other, input, alpha=alpha)
    return _ops.add(_ops.neg(input) if alpha == 1 else _ops.mul(input, -alpha), other)


def ravel(input: Tensor) -> Tensor:
    """All elements in one dim: a view where the memory allows it."""
    return _ops.reshape(input, (-1,))


def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements of the flattened `input` at `index` (int64, negative counts from the end), in its shape.

    Raises:
        IndexError: for an index outside the elements.
        RuntimeError: for an index that is not int64.
    """
    if index.dtype != _C.int64:
        raise _C.DtypeError(f"take: expected an index of torch.int64, got {index.dtype}")
    same_device("take", input, index)
    return _ops.reshape(input, (-1,))[index]


def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Differences of neighbours along `dim`, `n` times; `prepend` and `append` are joined on first."""
    if n < 0:
        raise RuntimeError(f"diff: expected n of at least 0, got {n}")
    if n == 0:
        return input.clone()
    parts = [x for x in (prepend, input, append) if x is not None]
    found = input if len(parts) == 1 else _ops.cat(parts, dim)
    for _ in builtins.range(min(n, found.size(dim))):
        rest = max(found.size(dim) - 1, 0)
        later, earlier = found.narrow(dim, min(1, found.size(dim)), rest), found.narrow(dim, 0, rest)
        found = _ops.logical_xor(later, earlier) if found.dtype == _C.bool else _ops.sub(later, earlier)
    return found


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
    if _name not in ("range", "rsub", "typename"):
        setattr(Tensor, _name, globals()[_name])


def _in_place(name: str, method: Any) -> Any:
    def write(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return method(self, *args, **kwargs)

    write.__name__ = name
    write.__doc__ = "The in-place form of an op, under its other name."
    return checked(write)


for _name, _method in [
    ("multiply_", Tensor.mul_),
    ("subtract_", Tensor.sub_),
    ("divide_", Tensor.div_),
    ("true_divide_", Tensor.div_),
    ("negative_", Tensor.neg_),
    ("arctan2_", Tensor.atan2_),
    ("greater_", Tensor.gt_),
    ("greater_equal_", Tensor.ge_),
    ("less_", Tensor.lt_),
    ("less_equal_", Tensor.le_),
    ("not_equal_", Tensor.ne_),
]:
    setattr(Tensor, _name, _in_place(_name, _method))
