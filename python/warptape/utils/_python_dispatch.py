"""TorchDispatchMode: an object that is called in the place of every op, also of those of the backward pass.

What it is handed are ops of this runtime under the names of `torch.ops.aten`, above the tape: `func(*args)`
records what it does. An op that PyTorch composes of others (`linear`, `layer_norm`) is one here, and what an
op calls within C++ belongs to it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

from .. import _C
from .._aten import aten_op, loss_arguments
from .._op_docs import default_value
from .._ops import OpOverloadPacket
from .._tensor import Tensor
from ..nn.parameter import Parameter
from ..overrides import _map_tensors

# Of the overloads of an op the first that is there is taken, by what its second argument is.
_ARITHMETIC = (
    "add",
    "sub",
    "mul",
    "div",
    "true_divide",
    "floor_divide",
    "rsub",
    "subtract",
    "multiply",
    "divide",
)
_BY_KIND = {
    "tensor": ("Tensor", "Tensor_Tensor", "other", "self", "default"),
    "number": ("Tensor_Scalar", "Scalar", "int", "dim", "default", "Tensor"),
    "list": ("dim_IntList", "dim", "dims", "sizes", "ListInt", "default"),
    "dtype": ("dtype", "default"),
    "none": ("default", "self"),
}
# Ops that read what a tensor is, which PyTorch asks of its own objects.
_QUESTIONS = frozenset(["is_complex", "is_floating_point", "is_signed", "is_conj", "is_neg", "is_same_size"])


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, (list, tuple)):
        return "list"
    if isinstance(value, _C.dtype):
        return "dtype"
    return "number" if isinstance(value, (int, float, complex)) and not isinstance(value, bool) else "none"


@functools.cache
def _overload_name(name: str, names: tuple[str, ...], first: str, second: str, by_dim: bool) -> str:
    base = name.rstrip("_")
    wanted = _BY_KIND[second]
    if base in _ARITHMETIC:
        wanted = ("Tensor", "Scalar", "default")
    elif base == "slice" or base == "split":
        wanted = ("Tensor",)
    elif first == "number" and second == "tensor":
        wanted = ("Scalar", "Scalar_Tensor", *wanted)
    elif by_dim:
        wanted = ("dim_IntList", "dim", *wanted)
    return next((n for n in wanted if n in names), "default" if "default" in names else names[0])


@functools.cache
def _packet(place: str, name: str) -> Any:
    """The packet of torch.ops.aten for an op of this name and place, or None."""
    full = f"{place}_{name}" if place and place != "nn" else name
    aten = {"cross_entropy": "cross_entropy_loss"}.get(full, full)
    if aten_op(aten) is None:
        return None
    from ..library import ops  # which has one object for each

    return getattr(ops.aten, aten)


@functools.cache
def _own_packet(place: str, name: str) -> Any:
    """One of the namespace warptape: of an op that PyTorch does not have, or has with other arguments."""
    spaces = [getattr(_C, f"_{place}")] if place else []
    spaces += [_C._functions, _C.TensorBase, _C._nn, _C._private]
    return OpOverloadPacket(f"warptape::{name}", next(vars(s)[name] for s in spaces if name in vars(s)))


def _rearranged(packet: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What a function of nn.functional got, as the dispatcher's op takes it, or None."""
    function = packet._function
    losses = loss_arguments(packet.__name__)
    if vars(_C._nn).get(name) is function:
        return args, kwargs
    declared = vars(_C._nn)[name]._declarations[0][2]
    defaults = {arg: default_value(kind, text) for arg, kind, _, has, _, _, text in declared if has}
    theirs = [] if losses else function._declarations[0][2]
    wanted = losses or [arg for arg, *_ in theirs]
    needed = [arg for arg, _, _, has, *_ in theirs if not has]
    more = {k: v for k, v in (defaults | {"cudnn_enabled": True}).items() if k in needed or losses}
    given = more | dict(zip([arg for arg, *_ in declared], args)) | kwargs
    if "reduction" in given and losses:
        given["reduction"] = ("none", "mean", "sum").index(given["reduction"])
    for here, there in (("input", "indices"), ("training", "train")):
        if there in wanted and here not in wanted and here in (defaults | given):
            given[there] = given.pop(here, defaults.get(here))
    ordered = tuple(given.pop(word) for word in itertools.takewhile(lambda word: word in given, list(wanted)))
    rest = {k for k, v in given.items() if k not in wanted and k != "cudnn_enabled" and v != defaults.get(k)}
    return None if rest else (ordered, {k: v for k, v in given.items() if k in wanted})


def _resolve(place: str, name: str, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """The overload that PyTorch's dispatcher would name, with its arguments."""
    packet = _packet(place, name)
    if packet is not None and place == "nn":
        found = _rearranged(packet, name, args, kwargs)
        packet, (args, kwargs) = (packet, found) if found is not None else (None, (args, kwargs))
    if packet is None:
        return _own_packet(place, name).default, args, kwargs
    kinds = [_kind(a) for a in (*args[:2], None, None)[:2]]
    by_dim = kwargs.get("dim") is not None
    overload = _overload_name(packet.__name__, tuple(packet.overloads()), *kinds, by_dim)
    return getattr(packet, overload), args, kwargs


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

    def __init__(self, _dispatch_key: Any = None) -> None:
        if _dispatch_key is not None:
            raise NotImplementedError("TorchDispatchMode: there are no dispatch keys to choose")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What the op returns."""
        raise NotImplementedError

    def _called(self, place: str, name: str, args: Any, kwargs: Any) -> Any:
        """An op, by its name in C++."""
        func, args, kwargs = _resolve(place, name, args, kwargs)
        if name in _QUESTIONS:
            return func(*args, **kwargs)
        found: dict[type, None] = {}
        _map_tensors((args, kwargs), lambda t: found.update({type(t): None}))
        types = tuple(t for t in found if t not in (Tensor, Parameter))
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
    """`out`: what an op returns in place is the argument itself here."""
    return out


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


def transform_subclass(t: Any, callback: Any, outer_size: Any = None, outer_stride: Any = None) -> Any:
    """A tensor like `t`, whose inner tensors are `callback(name, inner)`."""
    names, context = t.__tensor_flatten__()
    inner = {name: callback(name, getattr(t, name)) for name in names}
    size = t.size() if outer_size is None else outer_size
    stride = t.stride() if outer_stride is None else outer_stride
    return type(t).__tensor_unflatten__(inner, context, size, stride)
