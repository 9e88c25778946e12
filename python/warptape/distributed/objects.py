"""Collectives of Python objects.

Objects travel as JSON with tensors beside it: None, bool, int, float, str, bytes, list, tuple, Size, dict,
OrderedDict and tensors, nested. Anything else, subclasses of these too, needs `pickle=True`, which runs code
that the sender chose: only among ranks that trust each other.

A program that was written for PyTorch does not say so, for PyTorch pickles always. Where it runs unmodified
(`python -m warptape.torch`), `pickle=None` stands for True if the ranks are on one host: there the kernel has
shown that they are processes of one user, and what one may run the others may, too.
"""

from __future__ import annotations

import base64
import json
import math
import pickle as _pickle
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from warptape import core as wt

from .. import _C
from ..core import Tensor
from . import collectives
from .collectives import _root, _skipped
from .state import Group, resolve, state

if TYPE_CHECKING:
    from warptape.core.types import Device

_BASES = (bool, int, float, str, list, tuple, dict, bytes, Tensor)


def _encode(value: Any, tensors: list[Tensor], flatten: bool = False) -> Any:
    """With `flatten` subclasses become what they are derived from, as a checkpoint keeps them; without it
    they are refused, for they would arrive as other objects."""
    kind = type(value)
    if flatten:
        kind = next((base for base in _BASES if isinstance(value, base)), kind)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if value == value and abs(value) != float("inf") else {"float": repr(value)}
    if kind is list:
        return [_encode(each, tensors, flatten) for each in value]
    if kind in (tuple, wt.Size):
        return {"tuple" if kind is tuple else "size": [_encode(each, tensors, flatten) for each in value]}
    if kind in (dict, OrderedDict):
        pairs = [[_encode(k, tensors, flatten), _encode(v, tensors, flatten)] for k, v in value.items()]
        return {"dict" if kind is dict else "ordered": pairs}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is Tensor:
        tensors.append(value.detach().cpu().contiguous())
        return {"tensor": [str(value.dtype).rpartition(".")[2], list(value.shape)]}
    raise TypeError(
        f"an object of type {kind.__name__} travels only with pickle=True; without it there are None, bool, "
        "int, float, str, bytes, list, tuple, Size, dict, OrderedDict and tensors, and no subclasses of them "
        "(of a Parameter send p.detach())"
    )


def _decode(value: object, data: memoryview, at: list[int]) -> Any:
    if isinstance(value, list):
        return [_decode(each, data, at) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind in ("tuple", "size"):
        items = tuple(_decode(each, data, at) for each in inner)
        return items if kind == "tuple" else wt.Size(items)
    if kind in ("dict", "ordered"):
        pairs = [(_decode(k, data, at), _decode(v, data, at)) for k, v in inner]
        return dict(pairs) if kind == "dict" else OrderedDict(pairs)
    if kind == "bytes":
        return base64.b64decode(inner)
    if kind == "float":
        return float(inner)
    if kind != "tensor":
        raise ValueError(f"expected an object of a kind that is known, got {kind!r:.50}")
    name, shape = inner
    dtype = getattr(wt, name)
    if not isinstance(dtype, wt.dtype) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"expected a dtype and a shape, got {inner!r:.100}")
    end = at[0] + math.prod(shape) * dtype.itemsize
    if end > len(data):
        raise ValueError(f"a tensor of {shape!r:.50} has more bytes than came")
    raw, at[0] = bytes(data[at[0] : end]), end
    return _C._tensor_from_bytes(raw, dtype, shape)


def _unasked() -> bool:
    """Whether pickles are written and read without being asked for: see the module's docstring."""
    try:
        unmodified = wt.offered("unmodified program")
    except KeyError:
        return False
    return bool(unmodified) and state().backends[0] == "shm"


def to_tensor(value: object, pickle: bool | None = None) -> Tensor:
    """The object as a uint8 tensor of one dimension. Raises TypeError for what needs pickle.

    Args:
        value: plain data and tensors, or anything with `pickle`.
        pickle: whether pickle writes it; None for what is not plain data in an unmodified program.
    """
    tensors: list[Tensor] = []
    try:
        plain = None if pickle else json.dumps(_encode(value, tensors)).encode()
    except TypeError:
        if pickle is not None or not _unasked():
            raise
        plain = None
    if plain is None:
        parts = [b"P", _pickle.dumps(value)]
    else:
        parts = [b"J", len(plain).to_bytes(8, "little"), plain]
        parts += [_C._tensor_bytes(t) for t in tensors]
    return wt.from_numpy(np.frombuffer(b"".join(parts), np.uint8).copy())


def from_tensor(data: Tensor, pickle: bool | None = None) -> Any:
    """The object that a tensor of to_tensor holds. Raises TypeError for a pickled one without `pickle`.

    Args:
        data: uint8, 1-D.
        pickle: whether a pickled object may be read, which can run code; None for in an unmodified program.
    """
    raw = memoryview(data.numpy().tobytes())
    if raw[:1] == b"P":
        if not (_unasked() if pickle is None else pickle):
            raise TypeError("the sender pickled this object, and the receiver did not say pickle=True")
        return _pickle.loads(raw[1:])
    size = int.from_bytes(raw[1:9], "little")
    return _decode(json.loads(bytes(raw[9 : 9 + size])), raw, [9 + size])


def all_gather_object(
    object_list: list[Any], obj: object, group: Group = None, pickle: bool | None = None
) -> None:
    """`object_list[r]` becomes the object of rank r.

    Args:
        object_list: as long as there are ranks.
        obj: this rank's: plain data and tensors.
        group: the ranks; all if None.
        pickle: whether anything may be sent, by pickle; all ranks must trust each other. None for no, but in
            an unmodified program whose ranks are on one host.
    """
    if _skipped(group):
        return
    for r, data in enumerate(_gather(to_tensor(obj, pickle), group, None)):
        object_list[r] = from_tensor(data, pickle)


def gather_object(
    obj: object,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
    pickle: bool | None = None,
) -> None:
    """As all_gather_object, for rank `dst` (default 0) alone.

    Args:
        obj: this rank's: plain data and tensors.
        object_gather_list: on `dst` as long as there are ranks.
        dst: a rank of the job.
        group: the ranks; all if None.
        group_dst: a rank of the group, in place of `dst`.
        pickle: whether anything may be sent, by pickle; None as in all_gather_object.
    """
    if _skipped(group):
        return
    root = _root(group, dst, group_dst, "dst", default=0)
    gathered = _gather(to_tensor(obj, pickle), group, root)
    if resolve(group).rank() == root:
        if object_gather_list is None:
            raise ValueError("gather_object: the destination rank needs object_gather_list")
        for r, data in enumerate(gathered):
            object_gather_list[r] = from_tensor(data, pickle)


def _gather(data: Tensor, group: Group, root: int | None) -> list[Tensor]:
    """The byte tensors of all ranks, of different sizes: padded to the largest on their way."""
    n = resolve(group).size()
    sizes = wt.empty(n, dtype=wt.int64, device="cpu")
    collectives.all_gather_into_tensor(sizes, wt.tensor([data.numel()], device="cpu"), group)
    lengths = sizes.tolist()
    padded = wt.zeros(max(lengths), dtype=wt.uint8, device="cpu")
    padded[: data.numel()] = data
    rows = [wt.empty_like(padded) for _ in range(n)]
    if root is None:
        collectives.all_gather(rows, padded, group)
    else:
        here = resolve(group).rank() == root
        collectives.gather(padded, rows if here else None, group=group, group_dst=root)
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Device = None,
    group_src: int | None = None,
    pickle: bool | None = None,
) -> None:
    """The objects of rank `src` (default 0) come to all ranks, into their lists of the same length.

    Args:
        object_list: plain data and tensors.
        src: a rank of the job.
        group: the ranks; all if None.
        device: accepted, without effect.
        group_src: a rank of the group, in place of `src`.
        pickle: whether anything may be sent, by pickle; None as in all_gather_object.
    """
    if _skipped(group):
        return
    root = _root(group, src, group_src, "src", default=0)
    here = resolve(group).rank() == root
    data = to_tensor(list(object_list), pickle) if here else None
    size = wt.tensor([0 if data is None else data.numel()], device="cpu")
    collectives.broadcast(size, group=group, group_src=root)
    if data is None:
        data = wt.empty(int(size.item()), dtype=wt.uint8, device="cpu")
    collectives.broadcast(data, group=group, group_src=root)
    if not here:
        object_list[:] = from_tensor(data, pickle)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
    pickle: bool | None = None,
) -> None:
    """Element 0 of the output list becomes this rank's object of rank `src`'s (default 0) input list.

    Args:
        scatter_object_output_list: with one element at least.
        scatter_object_input_list: on `src` an object for each rank.
        src: a rank of the job.
        group: the ranks; all if None.
        group_src: a rank of the group, in place of `src`.
        pickle: whether anything may be sent, by pickle; None as in all_gather_object.
    """
    if _skipped(group):
        return
    root = _root(group, src, group_src, "src", default=0)
    pg = resolve(group)
    if pg.rank() == root and len(scatter_object_input_list or []) != pg.size():
        raise ValueError(f"scatter_object_list: expected {pg.size()} objects, one for each rank")
    objects = list(scatter_object_input_list or []) if pg.rank() == root else [None] * pg.size()
    broadcast_object_list(objects, group=group, group_src=root, pickle=pickle)
    scatter_object_output_list[0] = objects[pg.rank()]


def send_object_list(
    object_list: Sequence[Any],
    dst: int | None = None,
    group: Group = None,
    device: Device = None,
    group_dst: int | None = None,
    pickle: bool | None = None,
) -> None:
    """Sends a list of objects to one rank, which calls recv_object_list.

    Args:
        object_list: plain data and tensors.
        dst: a rank of the job.
        group: the ranks; all if None.
        device: accepted, without effect.
        group_dst: a rank of the group, in place of `dst`.
        pickle: whether anything may be sent, by pickle; None as in all_gather_object.
    """
    data = to_tensor(list(object_list), pickle)
    collectives.send(wt.tensor([data.numel()], device="cpu"), dst, group, group_dst=group_dst)
    collectives.send(data, dst, group, group_dst=group_dst)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Device = None,
    group_src: int | None = None,
    pickle: bool | None = None,
) -> int:
    """Receives what send_object_list sends; returns the rank it came from.

    Args:
        object_list: filled in place.
        src: a rank of the job; None for any.
        group: the ranks; all if None.
        device: accepted, without effect.
        group_src: a rank of the group, in place of `src`.
        pickle: whether pickled objects may be read, which can run code; None as in all_gather_object.
    """
    size = wt.tensor([0], device="cpu")
    sender = collectives.recv(size, src, group, group_src=group_src)
    data = wt.empty(int(size.item()), dtype=wt.uint8, device="cpu")
    collectives.recv(data, sender, group)
    object_list[:] = from_tensor(data, pickle)
    return sender
