"""torch.jit's names, for a runtime that runs Python as it is: scripting changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from ._missing import lookup as _lookup
from ._missing import say_once
from .nn import Module

__all__ = [
    "Final",
    "ScriptFunction",
    "ScriptModule",
    "annotate",
    "export",
    "fork",
    "freeze",
    "ignore",
    "interface",
    "is_scripting",
    "is_tracing",
    "isinstance",
    "optimize_for_inference",
    "optimized_execution",
    "script",
    "script_if_tracing",
    "script_method",
    "trace",
    "unused",
    "wait",
]

_isinstance = isinstance


class ScriptModule(Module):
    """Base of modules that are written for TorchScript: a plain module."""


class ScriptFunction:
    """What a scripted function would be: nothing is one."""


def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
    """`obj`, a function, class or module, as it is."""
    return obj


def _as_it_is(fn: Any) -> Any:
    """`fn` as it is."""
    return fn


export = interface = script_method = script_if_tracing = _as_it_is


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """The function as it is; with options, the decorator that returns it."""
    return drop if callable(drop) else _as_it_is


unused = _as_it_is


def trace(func: Any, example_inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`func` as it is: what it decides by its inputs it goes on to decide. Says so once."""
    say_once("torch.jit.trace: nothing is traced here; the function or module is returned as it is")
    return func


def freeze(mod: Any, *args: Any, **kwargs: Any) -> Any:
    """`mod` as it is.

    Raises:
        RuntimeError: a module in training mode.
    """
    if getattr(mod, "training", False):
        raise RuntimeError(
            "Freezing is currently only implemented for modules in eval mode. Please call .eval() on your "
            "module before freezing."
        )
    return mod


def optimize_for_inference(mod: Any, *args: Any, **kwargs: Any) -> Any:
    """`mod` as it is."""
    return mod


def annotate(the_type: Any, the_value: Any) -> Any:
    """`the_value`."""
    return the_value


def isinstance(obj: Any, target_type: Any) -> bool:
    """Whether `obj` is of the type; what a generic type holds is not looked at."""
    return _isinstance(obj, getattr(target_type, "__origin__", None) or target_type)


def is_scripting() -> bool:
    """False."""
    return False


is_tracing = is_scripting


def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs `func` here and now; `wait` returns its result."""
    from .futures import Future

    future: Any = Future()
    future.set_result(func(*args, **kwargs))
    return future


def wait(future: Any) -> Any:
    """The result of what `fork` started."""
    return future.wait()


@contextlib.contextmanager
def optimized_execution(should_optimize: bool) -> Iterator[None]:
    """Without effect."""
    yield


__getattr__ = _lookup(__name__)
