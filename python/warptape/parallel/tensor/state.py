"""state_dicts of split models. `model.state_dict()` is the sharded form: what this rank holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ... import nn
from ..._tensor import Tensor
from ...distributed import DeviceMesh
from .placement import ParallelParameter, Ranges, Replicate, Shard


@dataclass(frozen=True)
class ParameterLayout:
    """Where a rank's part of a parameter lies in the whole: `regions` has for each dim that is split what it
    holds of it; of all other dims it holds all."""

    full_shape: tuple[int, ...]
    device_mesh: DeviceMesh
    placements: tuple[Shard | Replicate, ...]
    regions: dict[int, Ranges]

    @property
    def dim(self) -> int | None:
        """The dim that is split, if one is. Raises ValueError when two are: see `regions`."""
        if len(self.regions) > 1:
            raise ValueError(f"dims {sorted(self.regions)} are split; use regions")
        return next(iter(self.regions), None)

    @property
    def ranges(self) -> Ranges:
        """What the rank holds of `dim`; empty when nothing is split."""
        dim = self.dim
        return [] if dim is None else self.regions[dim]


def _split(model: nn.Module) -> dict[str, ParallelParameter]:
    for module in model.modules():
        if "_sharding" in module.__dict__:
            module.__dict__["_sharding"].group.reshard()  # which may be whole for the moment
    named = model.named_parameters(remove_duplicate=False)
    return {name: p for name, p in named if isinstance(p, ParallelParameter)}


def parameter_layouts(model: nn.Module) -> dict[str, ParameterLayout]:
    """By name, the layouts of the parameters that lie on a mesh; all others are replicated."""
    return {
        name: ParameterLayout(p.full_shape, p.device_mesh, p.placements, p.regions())
        for name, p in _split(model).items()
    }


def full_state_dict(model: nn.Module) -> OrderedDict[str, Tensor]:
    """The unsplit model's state_dict, on every rank. Collective. Shared parameters stay one tensor."""
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
