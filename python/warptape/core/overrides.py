"""__torch_function__: classes and modes that take over calls of tensor functions, as torch.overrides has it.

A class with a classmethod `__torch_function__(cls, func, types, args=(), kwargs=None)` is asked for every
function, method and property that gets an object of it. A subclass of Tensor inherits one that calls the
function and makes its results objects of the subclass.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from warptape import core as wt

from .. import _C, _missing
from .python_objects import NOT_DECLARED

__all__ = [
    "BaseTorchFunctionMode",
    "TorchFunctionMode",
    "get_ignored_functions",
    "get_overridable_functions",
    "handle_torch_function",
    "has_torch_function",
    "has_torch_function_unary",
    "has_torch_function_variadic",
    "is_tensor_like",
    "is_tensor_method_or_property",
    "resolve_name",
    "wrap_torch_function",
]

_PLACES = {
    "torch": _C._functions,
    "torch.nn.functional": _C._nn,
    "torch.linalg": _C._linalg,
    "torch.special": _C._special,
    "torch.fft": _C._fft,
    "torch.signal.windows": _C._windows,
    "torch.masked": _C._masked,
}

# Methods that are not ops, and can be taken over as well.
_IN_PYTHON = (
    "backward new_tensor numpy register_hook register_post_accumulate_grad_hook retain_grad tolist type"
)


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """Whether one of the arguments, or a mode, takes over calls that have them.

    Args:
        relevant_args: of the call.
    """
    return _C._has_torch_function(tuple(relevant_args))


def has_torch_function_unary(tensor: object) -> bool:
    """`has_torch_function` of one argument.

    Args:
        tensor: of the call.
    """
    return _C._has_torch_function((tensor,))


def has_torch_function_variadic(*args: Any) -> bool:
    """`has_torch_function` of the arguments.

    Args:
        *args: of the call.
    """
    return _C._has_torch_function(args)


def handle_torch_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """What the modes, then the classes of `relevant_args`, make of public_api(*args, **kwargs).

    Raises:
        TypeError: all of them return NotImplemented.
    """
    return _C._handle_torch_function(public_api, tuple(relevant_args), *args, **kwargs)


def wrap_torch_function(dispatcher: Callable[..., Iterable[Any]]) -> Callable[..., Any]:
    """Decorator of a Python function that classes may take over; `dispatcher`, called with the function's
    arguments, returns those that are asked."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            relevant = dispatcher(*args, **kwargs)
            if has_torch_function(relevant):
                return handle_torch_function(wrapped, relevant, *args, **kwargs)
            return function(*args, **kwargs)

        return wrapped

    return decorate


def is_tensor_like(inp: object) -> bool:
    """Whether it is a Tensor, or of a class with `__torch_function__`.

    Args:
        inp: of any class.

    >>> torch.overrides.is_tensor_like(torch.ones(1)), torch.overrides.is_tensor_like([1.0])
    (True, False)
    """
    return type(inp) is wt.Tensor or hasattr(inp, "__torch_function__")


@functools.cache
def _names() -> dict[Any, str]:
    """The names of everything that can be taken over."""
    names: dict[Any, str] = {}
    methods = (type(_C._functions.add), type(_C.TensorBase.__getitem__))
    for name in vars(_C.TensorBase):
        attribute = getattr(_C.TensorBase, name)
        if isinstance(attribute, methods):
            names[attribute] = f"torch.Tensor.{name}"
        elif type(attribute).__name__ == "getset_descriptor":
            names[attribute.__get__] = f"torch.Tensor.{name}.__get__"
    names |= {getattr(wt.Tensor, name): f"torch.Tensor.{name}" for name in _IN_PYTHON.split()}
    names |= {getattr(wt, name): f"torch.{name}" for name in ("tensor", "as_tensor", "asarray")}
    for place, ops in _PLACES.items():
        names |= {op: f"{place}.{name}" for name, op in vars(ops).items() if callable(op)}
    return names


def get_overridable_functions() -> dict[Any, list[Callable[..., Any]]]:
    """The functions that can be taken over, by the namespace that has them."""
    functions: dict[Any, list[Callable[..., Any]]] = {}
    for function, name in _names().items():
        place = name.removesuffix(".__get__").rpartition(".")[0]
        functions.setdefault(_missing.find(place), []).append(function)
    return functions


def get_ignored_functions() -> set[Callable[..., Any]]:
    """Public functions that cannot be taken over: they take no tensor, or none that is computed with."""
    names = " ".join(NOT_DECLARED.values()).split()
    return {getattr(wt, name) for name in names if "." not in name}


def is_tensor_method_or_property(func: Callable[..., Any]) -> bool:
    """Whether a function handed to `__torch_function__` is a method of Tensor or the getter of a property.

    Args:
        func: any function.
    """
    return _names().get(func, "").startswith("torch.Tensor.") or getattr(func, "__name__", "") == "__get__"


def resolve_name(f: Callable[..., Any]) -> str | None:
    """The public name of a function handed to `__torch_function__`, as "torch.Tensor.add", or None.

    Args:
        f: any function.

    >>> torch.overrides.resolve_name(torch.Tensor.add)
    'torch.Tensor.add'
    """
    return _names().get(f)


class TorchFunctionMode:
    """Takes over all calls of tensor functions while it is entered; modes nest, the innermost is asked first.

    A subclass defines `__torch_function__(self, func, types, args=(), kwargs=None)`; within that, the mode
    itself is off.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What the call returns, or NotImplemented."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        _C._push_torch_function_mode(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        _C._pop_torch_function_mode()

    @classmethod
    def push(cls, *args: Any, **kwargs: Any) -> Any:
        """Deprecated: a new mode.

        Args:
            *args, **kwargs: of the class.
        """
        return cls(*args, **kwargs)


class BaseTorchFunctionMode(TorchFunctionMode):
    """A mode that changes nothing.

    It is a base of modes that change a few calls alone.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls the function."""
        return func(*args, **(kwargs or {}))


def _get_current_function_mode_stack() -> list[TorchFunctionMode]:
    """The modes that are entered, the innermost last."""
    return _C._torch_function_modes()


def _get_current_function_mode() -> TorchFunctionMode | None:
    """The innermost mode, or None."""
    return (_C._torch_function_modes() or [None])[-1]


def _len_torch_function_stack() -> int:
    """How many modes are entered."""
    return len(_C._torch_function_modes())


def _push_mode(mode: TorchFunctionMode) -> None:
    _C._push_torch_function_mode(mode)


def _pop_mode() -> TorchFunctionMode:
    return _C._pop_torch_function_mode()


@contextlib.contextmanager
def _pop_mode_temporarily() -> Iterator[TorchFunctionMode]:
    """Within it the innermost mode is off."""
    mode = _pop_mode()
    try:
        yield mode
    finally:
        _push_mode(mode)


@contextlib.contextmanager
def enable_reentrant_dispatch() -> Iterator[None]:
    """Changes nothing: a mode may call what it likes."""
    yield
