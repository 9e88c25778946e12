"""torch.ops.aten: the ops under the names, and with the arguments, that PyTorch's dispatcher gives them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from .. import _C
from ..core import Tensor, offered
from . import aten_backward
from .ops import OpOverloadPacket

_REDUCTIONS = ("none", "mean", "sum")


def _lines(name: str) -> Iterator[tuple[str, list[str]]]:
    with open(os.path.join(os.path.dirname(os.path.dirname(__file__)), "torch", name)) as file:
        for line in file:
            key, _, words = line.partition(":")
            yield key, words.split()


@functools.cache
def _arguments() -> dict[str, list[str]]:
    """What the dispatcher takes, by op, where functions of nn.functional take other arguments.

    Of losses these are their names; of others, which are not served, none.
    """
    return dict(_lines("aten_arguments.txt"))


def loss_arguments(name: str) -> list[str]:
    """The dispatcher's arguments of a loss; none for any other op."""
    return _arguments().get(name, [])


def _loss(name: str) -> Callable[..., Any]:
    names = _arguments()[name]

    def loss(*args: Any, **kwargs: Any) -> Any:
        bound = {**dict(zip(names, args)), **kwargs}
        reduction = bound.get("reduction", 1)
        return getattr(_C._nn, name.replace("entropy_loss", "entropy"))(
            **bound | {"reduction": _REDUCTIONS[reduction]}
        )

    return loss


def _to_copy(self: Tensor, *, dtype: Any = None, device: Any = None, **more: Any) -> Tensor:
    return self.to(device=device or self.device, dtype=dtype or self.dtype, copy=True)


def _slice(self: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return self[(slice(None),) * (dim % self.ndim) + (slice(start, end, step),)]


def _index(self: Tensor, indices: Any) -> Any:
    return self[tuple(slice(None) if i is None else i for i in indices)]


def _soft(name: str) -> Callable[..., Any]:
    def soft(self: Tensor, dim: int, half_to_float: bool = False) -> Any:
        return getattr(_C._functions, name)(self, dim, _C.float32 if half_to_float else None)

    return soft


def _elu(self: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    return scale * _C._nn.elu(self * input_scale, alpha)


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """The convolution of the dispatcher: its arguments give the dims, and whether it is transposed.

    Args:
        input, weight, bias: of conv1d to conv3d.
        stride, padding, dilation, transposed, output_padding, groups: likewise, a number for each dim.
    """
    dims = input.ndim - 2
    sizes = [tuple(n) * (dims if len(n) == 1 else 1) for n in (stride, padding, dilation, output_padding)]
    stride, padding, dilation, output_padding = sizes
    if transposed:
        op = getattr(_C._functions, f"conv_transpose{dims}d")
        return op(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return getattr(_C._functions, f"conv{dims}d")(input, weight, bias, stride, padding, dilation, groups)


def _like(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose results lie in memory as those of an op."""
    vars(function)["_aliasing"] = op._aliasing
    return function


def _sparse(name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: getattr(offered("sparse"), name)(*args, **kwargs)


# Those that are not functions or methods by that name.
_OTHERS: dict[str, Callable[..., Any]] = {
    "_log_softmax": _soft("log_softmax"),
    "_pin_memory": lambda self, device=None: self.pin_memory(),
    "_local_scalar_dense": lambda self: self.item(),
    "_softmax": _soft("softmax"),
    "_sparse_addmm": _sparse("addmm"),
    "_sparse_mm_reduce_impl": _sparse("mm"),
    "_to_copy": _to_copy,
    "_unsafe_view": lambda self, size: self.view(size),
    "alias": _like(_C.TensorBase.view_as, lambda self: self.view_as(self)),
    "convolution": convolution,
    "elu": _elu,
    "index": _index,
    "lift_fresh": lambda self: self,
    "slice": _like(_C._private._slice, _slice),
    "sym_numel": lambda self: self.numel(),
    "sym_size": lambda self, dim=None: self.size() if dim is None else self.size(dim),
    "sym_storage_offset": lambda self: self.storage_offset(),
    "sym_stride": lambda self, dim=None: self.stride() if dim is None else self.stride(dim),
    "tensordot": lambda self, other, dims_self, dims_other: _C._functions.tensordot(
        self, other, (dims_self, dims_other)
    ),
}


@functools.cache
def _overloads() -> dict[str, tuple[str, ...]]:
    """PyTorch's names of overloads, by op."""
    return {name: tuple(kinds.split()) for kinds, names in _lines("aten.txt") for name in names}


def overloads_of(name: str) -> tuple[str, ...]:
    """The overloads that PyTorch has of an op."""
    return _overloads().get(name, ("default",))


def _function(name: str) -> Any:
    if name in _OTHERS:
        return _OTHERS[name]
    if name in aten_backward.OPS:
        return aten_backward.OPS[name]
    if _arguments().get(name):
        return _loss(name)
    function = vars(_C._functions).get(name) or vars(_C.TensorBase).get(name)
    for prefix in ("linalg", "special", "fft"):
        if name.startswith(f"{prefix}_"):
            function = function or vars(getattr(_C, f"_{prefix}")).get(name.removeprefix(f"{prefix}_"))
    return function if function or name in _arguments() else vars(_C._nn).get(name)


def aten_op(name: str) -> Any:
    """`torch.ops.aten.<name>`, or None."""
    function = _function(name) if name in _overloads() else None
    return OpOverloadPacket(f"aten::{name}", function, _overloads()[name]) if callable(function) else None


def aten_names() -> list[str]:
    """The names of all that are here."""
    return [name for name in _overloads() if callable(_function(name))]
