"""torch.compiler's names, for a runtime that runs every op as it is called.

There is no compiler: what `compile` is given comes back as it is, and asking whether code is being compiled
answers no. The numbers are those of the program without `torch.compile`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ._missing import lookup as _lookup
from ._missing import say_once

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "cudagraph_mark_step_begin",
    "disable",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "list_backends",
    "reset",
    "set_stance",
]


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    **more: Any,
) -> Any:
    """`model`, a module or a function, as it is; without it, the decorator that does so. Says so once.

    The options are checked as far as they exclude each other, and have no effect.

    Raises:
        RuntimeError: both `mode` and `options`, as in PyTorch.
        TypeError: `model` cannot be called.
    """
    if mode is not None and options is not None:
        raise RuntimeError(
            "Either mode or options can be specified, but both can't be specified at the same time."
        )
    if model is None:
        return lambda later: compile(later, disable=disable)
    if not callable(model):
        raise TypeError(f"compile: expected a module or a function, got {type(model).__name__}")
    if not disable:
        say_once("torch.compile: there is no compiler here; the program runs as it is")
    return model


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """`fn` as it is; without it, the decorator that does so."""
    return fn if fn is not None else lambda later: later


def allow_in_graph(fn: Any) -> Any:
    """`fn` as it is."""
    return fn


assume_constant_result = allow_in_graph


def is_compiling() -> bool:
    """False."""
    return False


is_dynamo_compiling = is_exporting = is_compiling


def cudagraph_mark_step_begin() -> None:
    """Nothing: no captured graph owns memory that a new step may take."""


def reset() -> None:
    """Nothing: nothing was compiled."""


def list_backends(exclude_tags: Any = ("debug", "experimental")) -> list[str]:
    """No backends."""
    return []


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


def set_stance(stance: str = "default", **options: Any) -> Callable[..., Any]:
    """A context manager and decorator without effect."""
    return _nothing()


__getattr__ = _lookup(__name__)
