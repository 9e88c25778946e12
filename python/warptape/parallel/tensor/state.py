"""state_dicts of split models. `model.state_dict()` is the sharded form: what this rank holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ... import nn
from ..._tensor import Tensor
from ...distributed import DeviceMesh
from .placement import ParallelParameter, Replicate, Shard


@dataclass(frozen=True)
class ParameterLayout:
    """Where a rank's part of a parameter lies in the whole: `ranges` are its (start, length) along `dim`, in
    order; without them the rank holds all of it."""

    full_shape: tuple[int, ...]
    device_mesh: DeviceMesh
    placements: tuple[Shard | Replicate]
    dim: int | None
    ranges: list[tuple[int, int]]


def _split(model: nn.Module) -> dict[str, ParallelParameter]:
    named = model.named_parameters(remove_duplicate=False)
    return {name: p for name, p in named if isinstance(p, ParallelParameter)}


def parameter_layouts(model: nn.Module) -> dict[str, ParameterLayout]:
    """By name, the layouts of the parameters that lie on a mesh; all others are replicated."""
    found = {}
    for name, p in _split(model).items():
        where, mesh = p.placements[0], p.device_mesh
        dim, ranges = None, []
        if isinstance(where, Shard):
            dim = where.dim
            ranges = where.ranges(p.full_shape[dim], mesh.get_local_rank(), mesh.size())
        found[name] = ParameterLayout(p.full_shape, mesh, p.placements, dim, ranges)
    return found


def full_state_dict(model: nn.Module) -> OrderedDict[str, Tensor]:
    """The state_dict that the unsplit model has, on every rank. Collective. Shared parameters stay one
    tensor."""
    split, gathered = _split(model), {}
    state: OrderedDict[str, Any] = model.state_dict()
    for name in list(state):
        p = split.get(name)
        if p is not None:
            if id(p) not in gathered:
                gathered[id(p)] = p.full_tensor()
            state[name] = gathered[id(p)]
    return state


def load_full_state_dict(model: nn.Module, state: Mapping[str, Any], strict: bool = True) -> Any:
    """Loads an unsplit model's state_dict: of each parameter this rank's part. Returns what load_state_dict
    does. Raises RuntimeError, with nothing loaded, for a parameter of another shape."""
    split, own = _split(model), OrderedDict(state)
    for name in own.keys() & split.keys():
        expected, got = list(split[name].full_shape), list(own[name].shape)
        if expected != got:
            raise RuntimeError(f"load_full_state_dict: {name} is {expected} as a whole, got {got}")
    for name in own.keys() & split.keys():
        own[name] = split[name].part_of(own[name])
    return model.load_state_dict(own, strict=strict)
