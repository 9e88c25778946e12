"""Conditions on sizes that PyTorch may know as symbols only: here they are numbers, checked at once."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from .. import _C
from ..core import Tensor


def _checker(name: str, error: type[Exception]) -> Callable[..., None]:
    def check(cond: bool, message: Callable[[], Any] | None = None) -> None:
        if not isinstance(cond, bool):
            raise TypeError(f"cond must be a bool, but got {type(cond)}")
        if not cond:
            if message is not None and not callable(message):
                raise TypeError("message must be a callable")
            raise error(str(message()) if message else "Expected cond to be True, but got False")

    check.__name__ = name
    check.__doc__ = f"{error.__name__} with message() unless cond."
    return check


_check = _checker("_check", RuntimeError)
_check_index = _checker("_check_index", IndexError)
_check_value = _checker("_check_value", ValueError)
_check_type = _checker("_check_type", TypeError)
_check_not_implemented = _checker("_check_not_implemented", NotImplementedError)


def _check_is_size(i: int, message: Callable[[], Any] | None = None, *, max: int | None = None) -> None:
    """RuntimeError unless 0 <= i (<= max)."""
    _check(i >= 0 and (max is None or i <= max), message)


def _check_tensor_all(cond: Tensor, message: Callable[[], Any] | None = None) -> None:
    """RuntimeError with message() unless all of cond are True."""
    if not isinstance(cond, Tensor):
        raise TypeError(f"cond must be a tensor, but got {type(cond)}")
    if cond.dtype != _C.bool:
        raise TypeError(f"cond tensor must have dtype torch.bool, but got {cond.dtype}")
    _check(bool(cond.all()), message)


def _check_tensor_all_with(
    error_type: type[Exception], cond: Tensor, message: Callable[[], Any] | None = None
) -> None:
    """`_check_tensor_all` with another error."""
    try:
        _check_tensor_all(cond, message)
    except RuntimeError as error:
        raise error_type(*error.args) from None


def _assert_async(input: Tensor, assert_msg: str | None = None) -> None:
    """RuntimeError unless the one element of `input` is true. On the CPU there is nothing to wait for."""
    if input.numel() != 1:
        raise RuntimeError(f"_assert_async: expected a tensor of one element, got {list(input.shape)}")
    _check(bool(input), lambda: assert_msg or "Expected Tensor with single nonzero value, but got zero")


def _shape_as_tensor(self: Tensor) -> Tensor:
    """The sizes as an int64 vector on the CPU."""
    return _C._tensor(list(self.shape), _C.int64, None, False, True)


class _Symbolic(type):
    """No object is an instance: sizes are numbers here, while PyTorch's compiler has symbols for them."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"torch.{cls.__name__}: sizes are numbers here, and have no symbols")


class SymInt(metaclass=_Symbolic):
    """Stands for PyTorch's symbolic integers.

    Libraries test values for it; no value here is one.
    """


class SymFloat(metaclass=_Symbolic):
    """Stands for PyTorch's symbolic numbers.

    Libraries test values for it; no value here is one.
    """


class SymBool(metaclass=_Symbolic):
    """Stands for PyTorch's symbolic truth values.

    Libraries test values for it; no value here is one.
    """


class Tag(enum.Enum):
    """What an op declares to PyTorch's compiler.

    `torch.library` keeps it, and nothing here reads it.
    """

    core = 0
    cudagraph_unsafe = 1
    data_dependent_output = 2
    dynamic_output_shape = 3
    flexible_layout = 4
    generated = 5
    inplace_view = 6
    maybe_aliasing_or_mutating = 7
    needs_contiguous_strides = 8
    needs_exact_strides = 9
    needs_fixed_stride_order = 10
    nondeterministic_bitwise = 11
    nondeterministic_seeded = 12
    out = 13
    out_variant = 14
    pointwise = 15
    pt2_compliant_tag = 16
    reduction = 17
    view_copy = 18


def sym_float(a: Any) -> float:
    """A number as a float, as `float(a)`.

    >>> torch.sym_float(2)
    2.0
    """
    return float(a)


def sym_int(a: Any) -> int:
    """A number as an integer, rounded towards 0.

    >>> torch.sym_int(-1.5)
    -1
    """
    return int(a)


def sym_not(a: Any) -> bool:
    """not a."""
    return not a


def sym_max(a: Any, b: Any) -> Any:
    """The larger of two numbers, a float where one of them is.

    >>> torch.sym_max(2, 1.0)
    2.0
    """
    largest = max(a, b)
    return float(largest) if isinstance(a, float) or isinstance(b, float) else largest


def sym_min(a: Any, b: Any) -> Any:
    """The smaller of two numbers, a float where one of them is.

    >>> torch.sym_min(2, 3.0)
    2.0
    """
    least = min(a, b)
    return float(least) if isinstance(a, float) or isinstance(b, float) else least


def sym_sum(args: Any) -> Any:
    """The sum of numbers.

    >>> torch.sym_sum([1, 2, 3])
    6
    """
    return sum(args)


def sym_ite(b: bool, t: Any, f: Any) -> Any:
    """`t if b else f`.

    >>> torch.sym_ite(True, 1, 2)
    1
    """
    return t if b else f
