"""Parts of nested tensors for several devices, and one of them again: torch.nn.parallel.scatter_gather."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from ...core import Tensor

__all__ = ["gather", "is_namedtuple", "scatter", "scatter_kwargs"]


def is_namedtuple(obj: object) -> bool:
    """Whether `obj` is of a class that collections.namedtuple or typing.NamedTuple made.

    Such a tuple takes its items as separate arguments when it is made anew.
    """
    return isinstance(obj, tuple) and hasattr(obj, "_asdict") and hasattr(obj, "_fields")


def scatter(inputs: Any, target_gpus: Sequence[Any], dim: int = 0) -> Any:
    """For each device the inputs with its part of every tensor along `dim`, on that device.

    What is no tensor comes to every device as it is. Small tensors give fewer parts than there are devices.
    """
    devices = [wt.device(d) for d in target_gpus]

    def parts(x: Any) -> list[Any]:
        if isinstance(x, Tensor):
            return [part.to(d) for part, d in zip(x.chunk(len(devices), dim), devices, strict=False)]
        if isinstance(x, (list, tuple)) and x:
            zipped = list(zip(*map(parts, x), strict=False))
            if is_namedtuple(x):
                return [type(x)(*items) for items in zipped]
            return [type(x)(items) for items in zipped]
        if isinstance(x, dict) and x:
            return [type(x)(items) for items in zip(*map(parts, x.items()), strict=False)]
        return [x for _ in devices]

    return parts(inputs)


def scatter_kwargs(
    inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, target_gpus: Sequence[Any], dim: int = 0
) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
    """`scatter` of positional and keyword arguments, the shorter of both filled up with none.

    Args:
        inputs: positional arguments.
        kwargs: arguments by name.
        target_gpus: a device for each share.
        dim: the dimension along which tensors are divided.
    """
    positional = list(scatter(inputs, target_gpus, dim)) if inputs else []
    keywords = list(scatter(kwargs, target_gpus, dim)) if kwargs else []
    count = max(len(positional), len(keywords))
    positional += [()] * (count - len(positional))
    keywords += [{}] * (count - len(keywords))
    return tuple(positional), tuple(keywords)


def gather(outputs: Any, target_device: int | wt.device, dim: int = 0) -> Any:
    """The outputs of several devices as one, their tensors put together along `dim` on `target_device`.

    Raises:
        ValueError: dictionaries with other keys.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        device = wt.device(target_device)
        moved = [t.to(device) for t in outputs]
        return wt.stack(moved) if first.dim() == 0 else wt.cat(moved, dim)
    if first is None:
        return None
    if isinstance(first, dict):
        if any(o.keys() != first.keys() for o in outputs):
            raise ValueError("All dicts must have the same number of keys")
        return type(first)((k, gather([o[k] for o in outputs], target_device, dim)) for k in first)
    gathered = [gather(items, target_device, dim) for items in zip(*outputs, strict=True)]
    return type(first)(*gathered) if is_namedtuple(first) else type(first)(gathered)
