"""Clear errors for functions written in Python, at no price while nothing is wrong."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from . import _C
from ._C import TensorBase

_PLAIN: dict[str, type] = {"str": str, "_C.dtype": _C.dtype}


def _problem(annotation: str, value: Any) -> bool:
    """Whether value cannot be what the annotation, as text, says of tensors, dtypes and strings."""
    if annotation.startswith("Tensor"):
        if isinstance(value, int | float) and ("float" in annotation or "int" in annotation):
            return False
        return not isinstance(value, TensorBase) and not (value is None and "None" in annotation)
    if annotation.startswith("Sequence[Tensor"):
        return not isinstance(value, tuple | list) or not all(isinstance(v, TensorBase) for v in value)
    return annotation in _PLAIN and not isinstance(value, _PLAIN[annotation])


def same_device(op: str, first: Any, *others: Any) -> None:
    """DeviceError unless all tensors are on one device; for functions whose ops take them one by one."""
    for t in others:
        if t.device != first.device:
            raise _C.DeviceError(
                f"{op}: Expected all tensors to be on the same device, but found at least two devices, "
                f"{first.device} and {t.device}! Move one with .to(device)"
            )


_NAMED: tuple[type[Exception], ...] = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError)
_NAMED += (_C.ShapeError, _C.DtypeError, _C.DeviceError)


def _name_in(error: BaseException, name: str) -> None:
    """Puts the function's name before the error's message where it is not there yet."""
    message = error.args[0] if len(error.args) == 1 else None
    if type(error) not in _NAMED or not isinstance(message, str):
        return
    if not re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", message):
        error.args = (f"{name}: {message}",)


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose errors name it; failures on something that is no tensor become a TypeError that
    names the argument."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (
            AttributeError,
            RuntimeError,
            TypeError,
            ValueError,
            IndexError,
            KeyError,
            AssertionError,
        ) as e:
            import inspect  # takes long, and is needed only now

            signature = inspect.signature(function)
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            for name, given_value in given.items():
                kind, annotation = signature.parameters[name].kind, str(signature.parameters[name].annotation)
                for value in given_value if kind is inspect.Parameter.VAR_POSITIONAL else (given_value,):
                    if _problem(annotation, value):
                        raise TypeError(
                            f"{function.__name__}(): argument '{name}' must be {annotation}, "
                            f"not {type(value).__name__}"
                        ) from None
            _name_in(e, function.__name__)
            raise

    return wrapper
