"""TorchDispatchMode: an object that is called in the place of every op, also of those of the backward pass.

What it is handed are ops of this runtime under the names of `torch.ops.aten`, above the tape: `func(*args)`
records what it does. An op that PyTorch composes of others (`linear`, `layer_norm`) is one here, and what an
op calls within C++ belongs to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from .. import _C
from ..core import Tensor
from ..core.by_name import map_tensors
from ..library.op_names import resolve
from ..nn.parameter import Parameter

# Ops that read what a tensor is, which PyTorch asks of its own objects.
_QUESTIONS = frozenset(["is_complex", "is_floating_point", "is_signed", "is_conj", "is_neg", "is_same_size"])


class TorchDispatchMode:
    """While it is entered, every op is a call of its `__torch_dispatch__(func, types, args=(), kwargs=None)`.

    `func` is an overload of torch.ops.aten, or has the namespace "warptape" where PyTorch has no such op, and
    `types` has the classes of the tensors that are neither Tensor nor Parameter. Within the call the mode
    itself is off, and modes that were entered before see what it calls; `with self:` turns it on there. It
    holds for this thread and for the backward passes that run in it.

    Example::

        >>> from warptape.utils._python_dispatch import TorchDispatchMode
        >>> class Log(TorchDispatchMode):
        ...     def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        ...         print(func)
        ...         return func(*args, **(kwargs or {}))
        >>> with Log():
        ...     x = torch.ones(2) * 3
        aten.ones.default
        aten.mul.Tensor
    """

    def __init__(self, _dispatch_key: object = None) -> None:
        if _dispatch_key is not None:
            raise NotImplementedError("TorchDispatchMode: there are no dispatch keys to choose")

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What the op returns."""
        raise NotImplementedError

    def _called(self, place: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An op, by its name in C++."""
        func, args, kwargs = resolve(place, name, args, kwargs)
        if name in _QUESTIONS:
            return func(*args, **kwargs)
        kept_types: dict[type, None] = {}
        map_tensors((args, kwargs), lambda t: kept_types.update({type(t): None}))
        types = tuple(t for t in kept_types if t not in (Tensor, Parameter))
        out = self.__torch_dispatch__(func, types, args, kwargs)
        if out is NotImplemented:
            raise TypeError(f"{type(self).__name__}.__torch_dispatch__ returned NotImplemented for {func}")
        return out

    def __enter__(self) -> Any:
        _C._push_dispatch_mode(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _C._pop_dispatch_mode()

    @classmethod
    def push(cls, *args: Any, **kwargs: Any) -> Any:
        """Deprecated: a new mode."""
        return cls(*args, **kwargs)

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether it is one of the library's own: no."""
        return False


class BaseTorchDispatchMode(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls the op."""
        return func(*args, **(kwargs or {}))


def _get_current_dispatch_mode_stack() -> list[TorchDispatchMode]:
    """The modes that are entered, the innermost last."""
    return _C._dispatch_modes()


def _get_current_dispatch_mode() -> TorchDispatchMode | None:
    """The innermost mode, or None."""
    return (_C._dispatch_modes() or [None])[-1]


def is_in_torch_dispatch_mode(include_infra_modes: bool = True) -> bool:
    """Whether a mode is entered."""
    return bool(_C._dispatch_modes())


def is_in_any_mode_without_ignore_compile_internals() -> bool:
    """The same: there are no modes of a compiler."""
    return is_in_torch_dispatch_mode()


@contextlib.contextmanager
def _pop_mode_temporarily(k: Any = None) -> Iterator[TorchDispatchMode]:
    """Within it the innermost mode is off."""
    mode = _C._pop_dispatch_mode()
    try:
        yield mode
    finally:
        _C._push_dispatch_mode(mode)


@contextlib.contextmanager
def _disable_current_modes() -> Iterator[list[TorchDispatchMode]]:
    """Within it no mode is on."""
    modes = _C._dispatch_modes()
    for _ in modes:
        _C._pop_dispatch_mode()
    try:
        yield modes
    finally:
        for mode in modes:
            _C._push_dispatch_mode(mode)


def return_and_correct_aliasing(func: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """What a `__torch_dispatch__` is to return: an op that writes to an argument gives that argument.

    Args:
        func: the op.
        args, kwargs: as the class was given them.
        out: what it made of them.
    """
    name = func.overloadpacket.__name__
    if kwargs and "out" in kwargs and func.__name__.endswith("out"):
        return kwargs["out"]
    in_place = name.endswith("_") and not name.endswith("__")
    return args[0] if in_place and args and isinstance(args[0], Tensor) else out


def is_traceable_wrapper_subclass(t: object) -> bool:
    """Whether `t` is a tensor of a class with `__tensor_flatten__` and `__tensor_unflatten__`."""
    cls = t if isinstance(t, type) else type(t)
    return (
        issubclass(cls, Tensor)
        and cls is not Tensor
        and hasattr(cls, "__tensor_flatten__")
        and hasattr(cls, "__tensor_unflatten__")
    )


def is_traceable_wrapper_subclass_type(t: type) -> bool:
    """Whether tensors of class `t` are such."""
    return is_traceable_wrapper_subclass(t)


def transform_subclass(
    t: Any,
    callback: Callable[..., Any],
    outer_size: Sequence[int] | None = None,
    outer_stride: Sequence[int] | None = None,
) -> Any:
    """A tensor like `t`, whose inner tensors are `callback(name, inner)`."""
    names, context = t.__tensor_flatten__()
    inner = {name: callback(name, getattr(t, name)) for name in names}
    size = t.size() if outer_size is None else outer_size
    stride = t.stride() if outer_stride is None else outer_stride
    return type(t).__tensor_unflatten__(inner, context, size, stride)
