"""Clear errors for functions written in Python, at no price while nothing is wrong."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ._C import TensorBase


def _problem(annotation: str, value: Any) -> bool:
    """Whether value cannot be what the annotation, as text, says of tensors."""
    if annotation.startswith("Tensor"):
        return not isinstance(value, TensorBase) and not (value is None and "None" in annotation)
    if annotation.startswith("Sequence[Tensor"):
        return not isinstance(value, tuple | list) or not all(isinstance(v, TensorBase) for v in value)
    return False


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose failures on something that is no tensor become a TypeError that names the
    argument."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (AttributeError, TypeError, ValueError, IndexError, KeyError, AssertionError):
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            for name, value in given.items():
                if _problem(str(signature.parameters[name].annotation), value):
                    raise TypeError(
                        f"{function.__name__}(): argument '{name}' must be "
                        f"{signature.parameters[name].annotation}, not {type(value).__name__}"
                    ) from None
            raise

    return wrapper
