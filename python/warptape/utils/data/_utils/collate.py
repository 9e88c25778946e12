"""From a list of samples to one batch, and from NumPy arrays to tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from copy import copy
from typing import Any

import numpy as np

from warptape import core as wt

from . import worker

__all__ = ["collate", "default_collate", "default_collate_fn_map", "default_convert"]

CollateMap = dict[Any, Callable]


def _refused(kind: object) -> TypeError:
    return TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {kind}; pass a collate_fn of your own"
    )


def _is_text_or_object(dtype: np.dtype) -> bool:
    return dtype.kind in "SUO"


def default_convert(data: Any) -> Any:
    """``data`` with every NumPy array and scalar in it as a tensor; other leaves and the containers stay."""
    if isinstance(data, wt.Tensor):
        return data
    if isinstance(data, (np.ndarray, np.generic)):
        return data if _is_text_or_object(data.dtype) else wt.as_tensor(np.asarray(data))
    if isinstance(data, Mapping):
        return _like_mapping(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, tuple):
        items = [default_convert(value) for value in data]
        return type(data)(*items) if hasattr(data, "_fields") else items
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _like_sequence(data, [default_convert(value) for value in data])
    return data


def _like_mapping(source: Mapping, items: dict[Any, Any]) -> Any:
    """``items`` in a container of ``source``'s type, or a plain dict if that type cannot be built so."""
    try:
        if isinstance(source, MutableMapping):
            filled = copy(source)  # keeps what the type carries besides its items
            filled.update(items)
            return filled
        return type(source)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def _like_sequence(source: Sequence, items: list[Any]) -> Any:
    try:
        if isinstance(source, MutableSequence):
            filled = copy(source)
            for i, item in enumerate(items):
                filled[i] = item
            return filled
        return type(source)(items)  # type: ignore[call-arg]
    except TypeError:
        return items  # range and its like


def collate(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Any:
    """Puts the samples' leaves together, keeping the samples' structure.

    Args:
        batch: samples of one structure.
        collate_fn_map: function for each leaf type, called as ``fn(leaves, collate_fn_map=...)``.

    Raises:
        TypeError: a leaf of a type that is not in the map.
        RuntimeError: sequences of different lengths.
    """
    elem = batch[0]
    if collate_fn_map is not None:
        fn = collate_fn_map.get(type(elem))
        if fn is None:
            fn = next((f for kind, f in collate_fn_map.items() if isinstance(elem, kind)), None)
        if fn is not None:
            return fn(batch, collate_fn_map=collate_fn_map)
    if isinstance(elem, Mapping):
        together = {key: collate([d[key] for d in batch], collate_fn_map=collate_fn_map) for key in elem}
        return _like_mapping(elem, together)
    if isinstance(elem, Sequence):
        if any(len(sample) != len(elem) for sample in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        columns = [collate(column, collate_fn_map=collate_fn_map) for column in zip(*batch)]
        if hasattr(elem, "_fields"):
            return type(elem)(*columns)
        return columns if isinstance(elem, tuple) else _like_sequence(elem, columns)
    raise _refused(type(elem))


def _collate_tensors(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Any:
    first = batch[0]
    same = (first.shape, first.dtype, first.device, False)
    if worker.arena and all((t.shape, t.dtype, t.device, t.requires_grad) == same for t in batch):
        if first.device.type == "cpu":
            return wt.stack(list(batch), 0, out=worker.arena.empty((len(batch), *first.shape), first.dtype))
    return wt.stack(list(batch), 0)


def _collate_arrays(batch: Sequence[np.ndarray], *, collate_fn_map: CollateMap | None = None) -> Any:
    if _is_text_or_object(batch[0].dtype):
        raise _refused(batch[0].dtype)
    if any(a.shape != batch[0].shape for a in batch):
        return _collate_tensors([wt.as_tensor(a) for a in batch])  # raises the shape error
    # One copy in NumPy instead of one tensor per sample.
    if worker.arena and all(a.dtype == batch[0].dtype for a in batch):
        dtype = wt.as_tensor(np.empty(0, batch[0].dtype)).dtype
        out = worker.arena.empty((len(batch), *batch[0].shape), dtype)
        np.stack(batch, out=out.numpy())
        return out
    return wt.as_tensor(np.stack(batch))


#: The functions that ``default_collate`` uses, by leaf type; a program may add its own.
default_collate_fn_map: CollateMap = {
    wt.Tensor: _collate_tensors,
    np.ndarray: _collate_arrays,
    (np.bool_, np.number): lambda batch, **_: wt.as_tensor(np.array(batch)),
    float: lambda batch, **_: wt.tensor(list(batch), dtype=wt.float64),
    int: lambda batch, **_: wt.tensor(list(batch)),
    str: lambda batch, **_: batch,
    bytes: lambda batch, **_: batch,
}


def default_collate(batch: Sequence[Any]) -> Any:
    """Stacks samples into a batch with a new first dimension.

    Tensors are stacked; arrays and numbers become tensors (float64 for Python floats, int64 for ints);
    strings and bytes stay a list; mappings, named tuples and sequences are entered.

    Raises:
        TypeError: a leaf of another type.
        RuntimeError: samples of different sizes.
    """
    return collate(batch, collate_fn_map=default_collate_fn_map)
