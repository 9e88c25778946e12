"""Conditions on sizes that PyTorch may know as symbols only: here they are numbers, checked at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _C
from ._tensor import Tensor

__all__ = ["sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sum"]


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


def sym_float(a: Any) -> float:
    """float(a)."""
    return float(a)


def sym_int(a: Any) -> int:
    """int(a), rounded towards 0."""
    return int(a)


def sym_not(a: Any) -> bool:
    """not a."""
    return not a


def sym_max(a: Any, b: Any) -> Any:
    """The larger one, a float where one of them is."""
    found = max(a, b)
    return float(found) if isinstance(a, float) or isinstance(b, float) else found


def sym_min(a: Any, b: Any) -> Any:
    """The smaller one, a float where one of them is."""
    found = min(a, b)
    return float(found) if isinstance(a, float) or isinstance(b, float) else found


def sym_sum(args: Any) -> Any:
    """The sum of the numbers."""
    return sum(args)


def sym_ite(b: bool, t: Any, f: Any) -> Any:
    """t if b else f."""
    return t if b else f
