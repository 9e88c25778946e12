"""Which overload of torch.ops.aten an op is, with the arguments of PyTorch's dispatcher."""

from __future__ import annotations

import functools
import inspect
import itertools
from typing import Any

from .. import _C
from ..core import Tensor, offered
from ..core.op_docs import default_value
from .aten import aten_op, loss_arguments
from .ops import OpOverloadPacket

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
_BY_THIRD = ("lerp", "masked_fill")  # likewise by the third


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
    elif base == "copy":
        wanted = ("default",)
    elif base in _BY_THIRD:
        wanted = ("Tensor",) if second == "tensor" else ("Scalar",)
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
    return getattr(offered("ops").aten, aten)  # which has one object for each


@functools.cache
def own_op(place: str, name: str) -> Any:
    """One of the namespace warptape: of an op that PyTorch does not have, or has with other arguments.

    Args:
        place: "nn", "linalg", "special", "fft" or nothing.
        name: the op's, in C++.
    """
    spaces = [getattr(_C, f"_{place}")] if place else []
    spaces += [_C._functions, _C.TensorBase, _C._nn, _C._private]
    packet = OpOverloadPacket(f"warptape::{name}", next(vars(s)[name] for s in spaces if name in vars(s)))
    return packet.default


def _arguments(function: Any) -> list[tuple[str, bool]]:
    """An op's arguments, and whether each has a default; its own declaration or a function's signature."""
    declared = getattr(function, "_declarations", None)
    if declared is not None:
        return [(arg, has) for arg, _, _, has, *_ in declared[0][2]]
    return [(p.name, p.default is not p.empty) for p in inspect.signature(function).parameters.values()]


def _rearranged(packet: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What a function of nn.functional got, as the dispatcher's op takes it, or None."""
    function = packet._function
    losses = loss_arguments(packet.__name__)
    if vars(_C._nn).get(name) is function:
        return args, kwargs
    declared = vars(_C._nn)[name]._declarations[0][2]
    if not losses and any(arg == "reduction" for arg, *_ in declared):
        return None  # whose number means something else
    defaults = {arg: default_value(kind, text) for arg, kind, _, has, _, _, text in declared if has}
    parameters = [] if losses else _arguments(function)
    wanted = losses or [arg for arg, _ in parameters]
    needed = [arg for arg, has in parameters if not has]
    more = {k: v for k, v in (defaults | {"cudnn_enabled": True}).items() if k in needed or losses}
    bound = more | dict(zip([arg for arg, *_ in declared], args)) | kwargs
    if "reduction" in bound and losses:
        bound["reduction"] = ("none", "mean", "sum").index(bound["reduction"])
    for here, there in (("input", "indices"), ("input", "self"), ("training", "train")):
        if there in wanted and here not in wanted and here in (defaults | bound):
            bound[there] = bound.pop(here, defaults.get(here))
    ordered = tuple(bound.pop(word) for word in itertools.takewhile(lambda word: word in bound, list(wanted)))
    rest = {k for k, v in bound.items() if k not in wanted and k != "cudnn_enabled" and v != defaults.get(k)}
    return None if rest else (ordered, {k: v for k, v in bound.items() if k in wanted})


def resolve(place: str, name: str, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """The overload that PyTorch's dispatcher would name, with its arguments.

    Args:
        place: "nn", "linalg", "special", "fft" or nothing.
        name: the op's, in C++.
        args, kwargs: of its declaration.
    """
    packet = _packet(place, name)
    if packet is not None and place == "nn":
        call = _rearranged(packet, name, args, kwargs)
        packet, (args, kwargs) = (packet, call) if call is not None else (None, (args, kwargs))
    if packet is None:
        return own_op(place, name), args, kwargs
    first = 1 if packet.__name__.rstrip("_") in _BY_THIRD else 0
    kinds = [_kind(a) for a in (*args[first : first + 2], None, None)[:2]]
    by_dim = kwargs.get("dim") is not None
    overload = _overload_name(packet.__name__, tuple(packet.overloads()), *kinds, by_dim)
    return getattr(packet, overload), args, kwargs
