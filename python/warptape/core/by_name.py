"""Classes of tensors that compute themselves what functions of tensors are to give: one dispatcher by name.

A sparse, nested or quantised tensor and a DTensor hold other tensors. Each of these classes has a table of
handlers; `__torch_function__`, which is asked for each function, method and property, looks one up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar

from .. import _C
from .tensor_class import Tensor

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def name_of(func: Any) -> str:
    """The name of what `__torch_function__` got; of a property "get " and the property's.

    Args:
        func: a function, a method, or `__get__` or `__set__` of a property.
    """
    if type(func).__name__ == "method-wrapper":  # a descriptor's __get__
        return f"get {func.__self__.__name__}"
    return str(func.__name__)


class Handlers(dict[str, Handler]):
    """What a class does in the place of functions, by `name_of` the function: handler(func, args, kwargs).

    Args:
        again: whether functions that handlers call on tensors of the class have handlers, too. If not, such
            a tensor is to them what its memory is, as for a class whose memory is that of what it holds.
    """

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.again = again
        self.other: Handler = _refuse

    def handles(self, *names: str) -> Callable[[Handler], Handler]:
        """A decorator of the handler of functions.

        Args:
            *names: of the functions, with blanks between; "get.shape" is the property `shape`.
        """

        def register(handler: Handler) -> Handler:
            self.update((name.replace("get.", "get "), handler) for name in " ".join(names).split())
            return handler

        return register

    def replaces(self, *names: str) -> Callable[[Any], Any]:
        """A decorator of a function that is called with the arguments alone, in the place of others.

        Args:
            *names: as of `handles`.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.handles(*names)(lambda func, args, kwargs: function(*args, **kwargs))
            return function

        return register


def _refuse(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise NotImplementedError(f"{name_of(func)}: not supported for {type(args[0]).__name__}")


class HandledTensor(Tensor):
    """A tensor of whose class `handlers` has what functions do."""

    handlers: ClassVar[Handlers]

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What the handler of the function gives.

        Args:
            func: is called.
            types: of the arguments that have a `__torch_function__`.
            args, kwargs: of the call.
        """
        handlers = cls.handlers
        handler = handlers.get(name_of(func), handlers.other)
        if handlers.again:
            return handler(func, args, kwargs or {})
        with _C.DisableTorchFunctionSubclass():
            return handler(func, args, kwargs or {})


# ---- what handlers need ----


def map_tensors(value: Any, change: Callable[..., Any]) -> Any:
    """The same lists, tuples and dicts, with every tensor changed, from left to right.

    Args:
        value: a tensor, or lists, tuples and dicts of tensors and anything else.
        change: is called with each tensor.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(v, change) for v in value))
    if isinstance(value, list | tuple):
        items = [map_tensors(v, change) for v in value]
        if type(value) in (list, tuple):
            return type(value)(items)
        return type(value)(items) if any(a is not b for a, b in zip(items, value, strict=True)) else value
    if isinstance(value, dict):
        return {k: map_tensors(v, change) for k, v in value.items()}
    return value


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors of arguments or results, from left to right.

    Args:
        value: a tensor, or lists, tuples and dicts of tensors and anything else.
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def is_pointwise(func: Callable[..., Any]) -> bool:
    """Whether C++ declares an op pointwise, or it is one of three that vmap has other rules for.

    Args:
        func: the op.
    """
    name = name_of(func)
    if name.rstrip("_") in ("masked_fill", "fill", "where") or getattr(func, "_is_pointwise", False):
        return True
    if not name.endswith("_"):
        return False
    base = getattr(_C.TensorBase, name.rstrip("_"), None)  # in-place forms are declared apart
    return bool(getattr(base, "_is_pointwise", False))


_FACTS = {"bool", "int", "dtype", "ints", "int tuple", "Number"}
_READS = frozenset(["allclose", "equal", "is_nonzero", "item"])


@functools.cache
def tells_facts(name: str) -> bool:
    """Whether C++ declares an op that tells what a tensor says of itself: no tensor, and no value of one.

    Args:
        name: the op's, in C++.
    """
    kinds = {returns for op, _, _, returns, *_ in _C._list_ops() if op == name}
    return bool(kinds) and kinds <= _FACTS and name not in _READS
