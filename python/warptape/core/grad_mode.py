"""Modes that say whether ops are recorded, as contexts and as decorators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import _C

_GENERATOR = 0x20  # inspect.CO_GENERATOR: inspect takes long to import


class _Mode:
    """A context manager that also decorates functions and generator functions."""

    def __enter__(self) -> Any:
        raise NotImplementedError

    def __exit__(self, *error: Any) -> None:
        raise NotImplementedError

    def clone(self) -> _Mode:
        """A fresh context of the same kind, for one call of a decorated function."""
        return type(self)()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        plain = function.func if isinstance(function, functools.partial) else function
        if getattr(getattr(plain, "__code__", None), "co_flags", 0) & _GENERATOR:
            return self._wrap_generator(function)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self.clone():
                return function(*args, **kwargs)

        return wrapper

    def _wrap_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            # The mode holds while the generator runs, not between its items.
            generator = function(*args, **kwargs)
            send: Any = None
            while True:
                try:
                    with self.clone():
                        item = generator.send(send)
                except StopIteration as stop:
                    return stop.value
                try:
                    send = yield item
                except GeneratorExit:
                    with self.clone():
                        generator.close()
                    raise

        return wrapper


class no_grad(_Mode):
    """Ops inside are not recorded: results have no history.

    >>> x = torch.ones(2, requires_grad=True)
    >>> with torch.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:  # noqa: D102
        mode = super().__new__(cls)
        return mode if function is None else mode(function)

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_C._set_grad_enabled(False))

    def __exit__(self, *error: Any) -> None:
        _C._set_grad_enabled(self._before.pop())


class enable_grad(no_grad):
    """Ops inside are recorded, also within no_grad.

    >>> x = torch.ones(2, requires_grad=True)
    >>> with torch.no_grad(), torch.enable_grad():
    ...     y = x * 2
    >>> y.requires_grad
    True
    """

    def __enter__(self) -> None:
        self._before.append(_C._set_grad_enabled(True))


class set_grad_enabled(_Mode):
    """Switches recording on or off at once; as a context, puts it back at the end.

    >>> x = torch.ones(2, requires_grad=True)
    >>> with torch.set_grad_enabled(False):
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    def __init__(self, mode: bool) -> None:
        self.mode = bool(mode)
        self._before = _C._set_grad_enabled(self.mode)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: D102
        _C._set_grad_enabled(self._before)  # a decorator changes nothing now
        return super().__call__(function)

    def __enter__(self) -> None:
        _C._set_grad_enabled(self.mode)

    def __exit__(self, *error: Any) -> None:
        _C._set_grad_enabled(self._before)

    def clone(self) -> set_grad_enabled:
        """A fresh context with the same mode."""
        return type(self)(self.mode)


class inference_mode(_Mode):
    """no_grad whose tensors can never be recorded later: nothing is kept for the tape at all.

    >>> with torch.inference_mode():
    ...     y = torch.ones(2) * 2
    >>> y.is_inference()
    True
    """

    def __new__(cls, mode: Any = True) -> Any:  # noqa: D102
        if callable(mode) and not isinstance(mode, bool):
            return super().__new__(cls)._with(True)(mode)
        return super().__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        self._with(mode)

    def _with(self, mode: bool) -> inference_mode:
        self.mode = bool(mode)
        self._before: list[tuple[bool, bool]] = []
        return self

    def __enter__(self) -> None:
        inference = _C._set_inference_mode(self.mode)
        self._before.append((inference, _C._set_grad_enabled(not self.mode)))

    def __exit__(self, *error: Any) -> None:
        inference, grad = self._before.pop()
        _C._set_inference_mode(inference)
        _C._set_grad_enabled(grad)

    def clone(self) -> inference_mode:
        """A fresh context with the same mode."""
        return type(self)(self.mode)
