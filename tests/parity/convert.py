"""Between the two libraries: tensors with their memory layout, dtypes, and functions of PyTorch's samples."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import warptape

INTERNAL = "torch.testing._internal"


def find(root: Any, path: str) -> Any:
    """The object at a dotted path below `root`, or None."""
    for name in path.split("."):
        root = getattr(root, name, None)
        if root is None:
            return None
    return root


def our_tensor(theirs: torch.Tensor, made: dict[int, Any] | None = None) -> Any:
    """A tensor of ours with the same values, sizes and strides, in memory of its own, which tensors of one
    storage share if they are made with the same `made`."""
    plain = theirs.detach().resolve_conj().resolve_neg()
    if plain.numel() == 0:
        ours = warptape.empty_strided(tuple(plain.shape), plain.stride(), dtype=our_value(plain.dtype))
    else:
        storage = plain.untyped_storage()
        # What was resolved lies in memory that is free again afterwards.
        shared = {} if made is None or plain.data_ptr() != theirs.data_ptr() else made
        ours = shared.get(storage._cdata)
        if ours is None or str(ours.dtype) != str(plain.dtype):
            memory = torch.empty(0, dtype=plain.dtype).set_(storage)  # as_strided may reach all of it
            ours = shared[storage._cdata] = warptape.from_dlpack(memory).clone()
        ours = ours.as_strided(tuple(plain.shape), plain.stride(), plain.storage_offset()).detach()
    return ours.requires_grad_() if theirs.requires_grad else ours


def their_tensor(ours: Any) -> torch.Tensor:
    """The values of a tensor of ours."""
    plain = ours.detach().resolve_conj().resolve_neg()
    return (
        torch.from_dlpack(plain.clone())
        if plain.numel()
        else torch.empty(tuple(ours.shape), dtype=their_dtype(ours))
    )


def their_dtype(ours: Any) -> torch.dtype:
    """PyTorch's dtype of the same name."""
    return getattr(torch, str(ours.dtype).rpartition(".")[2])


def our_value(value: Any, made: dict[int, Any] | None = None) -> Any:
    """An argument of a sample as an argument for us; the same tensor twice stays the same twice."""
    made = {} if made is None else made
    if isinstance(value, torch.Tensor):
        if id(value) not in made:
            made[id(value)] = _our_leaf(value, made)
        return made[id(value)]
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return getattr(warptape, str(value).rpartition(".")[2])
    if isinstance(value, torch.device):
        return warptape.device(str(value))
    if isinstance(value, torch.Size):
        return warptape.Size(value)
    if isinstance(value, torch.Generator):
        return warptape.Generator().manual_seed(value.initial_seed())
    if isinstance(value, dict):
        return {key: our_value(item, made) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(our_value(item, made) for item in (value.start, value.stop, value.step)))
    if type(value) in (list, tuple):
        return type(value)(our_value(item, made) for item in value)
    if isinstance(value, torch.nn.Module):
        return _our_module(value)
    if isinstance(value, torch.nn.LinearCrossEntropyOptions):
        fields = {name: our_value(getattr(value, name)) for name in value.__slots__}
        return warptape.nn.LinearCrossEntropyOptions(**fields)
    return our_function(value) if callable(value) and not isinstance(value, type) else value


def _our_module(value: torch.nn.Module) -> Any:
    """A module among the arguments: a layer of a Transformer, or a distance with its defaults."""
    ours = find(warptape, f"nn.{type(value).__name__}")
    if not isinstance(value, torch.nn.TransformerEncoderLayer):
        return ours()
    attention, norm = value.self_attn, value.norm1
    return ours(
        attention.embed_dim,
        attention.num_heads,
        value.linear1.out_features,
        value.dropout.p,
        our_function(value.activation),
        norm.eps,
        attention.batch_first,
        value.norm_first,
        value.linear1.bias is not None,
    )


def _our_leaf(value: torch.Tensor, made: dict[int, Any]) -> Any:
    if isinstance(value, torch.nn.Parameter):
        return warptape.nn.Parameter(our_tensor(value.detach(), made), requires_grad=value.requires_grad)
    return our_tensor(value, made)


_bound: dict[int, tuple[Any, Any]] = {}  # by id, with the function itself so that its id stays its own
_globals: dict[int, dict[str, Any]] = {}


def without_seed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What stands in for PyTorch's wrapper_set_seed, so that random ops are seen to be random."""
    return function(*args, **kwargs)


def our_function(function: Any) -> Any:
    """The same function of ours: one of the samples' helpers with `torch` bound to warptape, else by name."""
    if isinstance(function, types.FunctionType) and function.__module__.startswith(INTERNAL):
        return _rebind(function)
    name = getattr(function, "__name__", "")
    for space in ("", "nn.functional.", "special.", "linalg.", "Tensor."):
        theirs = find(torch, space + name) if name else None
        if theirs is not None and theirs is function:
            return find(warptape, space + name) or function
    return function


def _rebind(function: types.FunctionType) -> Any:
    """The function with our library as its `torch`, in its helpers and closures too."""
    if id(function) in _bound:
        return _bound[id(function)][1]
    known = _globals.get(id(function.__globals__))
    if known is None:
        known = _globals[id(function.__globals__)] = dict(function.__globals__)
        known.update(torch=warptape, F=warptape.nn.functional, wrapper_set_seed=without_seed)
        for name, value in function.__globals__.items():
            if isinstance(value, types.FunctionType) and (value.__module__ or "").startswith(INTERNAL):
                if name != "wrapper_set_seed":
                    known[name] = _rebind(value)
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    bound = types.FunctionType(function.__code__, known, function.__name__, None, cells)
    _bound[id(function)] = function, bound  # before what it refers to: that may refer back
    bound.__kwdefaults__ = {k: _closed(v) for k, v in (function.__kwdefaults__ or {}).items()} or None
    bound.__defaults__ = tuple(_closed(v) for v in function.__defaults__ or ()) or None
    for cell, theirs in zip(cells, function.__closure__ or ()):
        cell.cell_contents = _closed(theirs.cell_contents)
    return bound


def _closed(value: Any) -> Any:
    try:
        return our_value(value)
    except (AttributeError, RuntimeError, ValueError):
        return value
