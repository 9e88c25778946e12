"""Functions of plain tensors that run on the shards of DTensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...core import Tensor
from ...core.pytree import tree_flatten, tree_unflatten
from ...distributed.device_mesh import DeviceMesh
from .placement import Placement
from .tensor import DTensor

Placements = Sequence[Placement] | None


def local_map(
    func: Callable[..., Any] | None = None,
    out_placements: Placements | tuple[Placements, ...] = None,
    in_placements: tuple[Placements, ...] | None = None,
    in_grad_placements: tuple[Placements, ...] | None = None,
    device_mesh: DeviceMesh | None = None,
    *,
    redistribute_inputs: bool = False,
) -> Callable[..., Any]:
    """`func`, but given DTensors it runs on what this rank holds, and its tensors come back as DTensors.

    Without a DTensor among its positional arguments it is `func` itself. Without `func` it is a decorator.

    Args:
        func: a function of plain tensors. Collectives that it needs are its own.
        out_placements: how its result lies; of several values a tuple with an entry for each, None for those
            that are no tensors.
        in_placements: how each positional argument, with lists and dicts taken apart, must lie; None for what
            is no tensor. A plain tensor is handed on whatever its entry says.
        in_grad_placements: how the gradient that `func` gives for each will lie, where not as the argument:
            [Partial()] for a replicated one of which every rank uses all for a part of the work.
        device_mesh: of the results; the first DTensor's if not given.
        redistribute_inputs: bring arguments that lie otherwise to `in_placements`, instead of refusing them.

    Raises:
        ValueError: an argument does not lie as `in_placements` says.
        AssertionError: placements for what is no tensor, none for a DTensor, or too few or too many.

    >>> from warptape.distributed.tensor import Shard, distribute_tensor
    >>> from warptape.distributed.tensor.experimental import local_map
    >>> def run():
    ...     mesh = torch.distributed.init_device_mesh("cpu", (2,))
    ...     x = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
    ...     doubled = local_map(lambda part: part * 2, [Shard(0)], ([Shard(0)],))
    ...     return doubled(x).full_tensor().tolist()
    >>> torch.distributed.simulate(2, run)[0]
    [0.0, 2.0, 4.0, 6.0]
    """
    how = (out_placements, in_placements, in_grad_placements, device_mesh, redistribute_inputs)
    if func is None:
        return lambda function: functools.partial(_run, function, *how)
    return functools.partial(_run, func, *how)


def _local(arg: DTensor, place: int, wanted: Any, gradients: Any, redistribute_inputs: bool) -> Tensor:
    """What this rank holds of an argument, as placements[place] say."""
    if wanted is not None:
        where = wanted[place]
        if where is None:
            raise AssertionError(f"DTensor input {arg} expects placements but received {where}!")
        if arg.placements != tuple(where):
            if not redistribute_inputs:
                raise ValueError(
                    f"arg {arg} in local_map has a mismatched placements: arg placements is "
                    f"{arg.placements} but the input placements is {tuple(where)}! If redistribute_inputs is "
                    "wanted, set redistribute_inputs=True to local_map."
                )
            arg = arg.redistribute(placements=where)
    if gradients is None:
        return arg.to_local()
    if gradients[place] is None:
        raise AssertionError(f"DTensor input {arg} expects in grad placements but received None!")
    return arg.to_local(grad_placements=gradients[place])


def _run(
    func: Callable[..., Any],
    out_placements: Any,
    in_placements: Any,
    in_grad_placements: Any,
    mesh: DeviceMesh | None,
    redistribute_inputs: bool,
    *args: Any,
    **kwargs: Any,
) -> Any:
    flat, spec = tree_flatten(args)
    if in_placements is not None and len(in_placements) != len(flat):
        raise AssertionError(
            f"in_placements length {len(in_placements)} does not match the number of input args {len(flat)}!"
        )
    placed = [arg for arg in flat if isinstance(arg, DTensor)]
    shards = []
    for place, arg in enumerate(flat):
        if isinstance(arg, DTensor):
            shards.append(_local(arg, place, in_placements, in_grad_placements, redistribute_inputs))
            continue
        if in_placements is not None and not isinstance(arg, Tensor) and in_placements[place] is not None:
            raise AssertionError(
                f"Non-Tensor input {arg} expects None placements but received {in_placements[place]}!"
            )
        shards.append(arg)
    out = func(*tree_unflatten(shards, spec), **kwargs)
    return _joined(out, out_placements, mesh or placed[0].device_mesh) if placed else out


def _joined(out: Any, placements: Any, mesh: DeviceMesh) -> Any:
    """The results as DTensors."""
    flat, spec = tree_flatten(out)
    wanted = placements if isinstance(placements, tuple) else (placements,)
    if len(flat) != len(wanted):
        raise AssertionError(
            "local_map requires one PlacementType be provided for each output value, received "
            f"{len(wanted)} out_placements but {len(flat)} is expected!"
        )
    joined = []
    for value, where in zip(flat, wanted, strict=True):
        if isinstance(value, DTensor):
            raise AssertionError(f"torch.Tensor output expected but received {type(value)}: {value}")
        if isinstance(value, Tensor):
            value = DTensor.from_local(value, mesh, where, run_check=False)
        elif where is not None:
            raise AssertionError(f"Non-tensor output {value} expects None placements but received {where}!")
        joined.append(value)
    return tree_unflatten(joined, spec)
