"""state_dicts of split models. `model.state_dict()` is the sharded form: what this rank holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ... import nn
from ...core import Tensor
from ...distributed import DeviceMesh
from ..dtensor.placement import Placement, Ranges, Shard
from ..dtensor.tensor import DTensor, full_tensor_of


@dataclass(frozen=True)
class ParameterLayout:
    """Where a rank's part of a parameter lies in the whole: `regions` has for each dim that is split what it
    holds of it; of all other dims it holds all."""

    full_shape: tuple[int, ...]
    device_mesh: DeviceMesh
    placements: tuple[Placement, ...]
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


def _split(model: nn.Module) -> dict[str, DTensor]:
    for module in model.modules():
        if "_sharding" in module.__dict__:
            module.__dict__["_sharding"].group.reshard()  # which may be whole for the moment
    named = model.named_parameters(remove_duplicate=False)
    return {name: p for name, p in named if isinstance(p, DTensor)}


def parameter_layouts(model: nn.Module) -> dict[str, ParameterLayout]:
    """By name, the layouts of the parameters that lie on a mesh; all others are replicated.

    Args:
        model: with split layers.
    """
    return {
        name: ParameterLayout(tuple(p.shape), p.device_mesh, p.placements, _split_dims(p))
        for name, p in _split(model).items()
    }


def _split_dims(p: DTensor) -> dict[int, Ranges]:
    dims = {where.dim for where in p.placements if isinstance(where, Shard)}
    return {d: held for d, held in enumerate(p._spec.regions()) if d in dims}


def full_state_dict(model: nn.Module) -> OrderedDict[str, Tensor]:
    """The unsplit model's state_dict, on every rank. Collective. Shared parameters stay one tensor.

    Args:
        model: with split layers.
    """
    split, gathered = _split(model), {}
    state: OrderedDict[str, Any] = model.state_dict()
    for name in list(state):
        p = split.get(name)
        if p is not None:
            if id(p) not in gathered:
                gathered[id(p)] = full_tensor_of(p)
            state[name] = gathered[id(p)]
    return state


def load_full_state_dict(model: nn.Module, state: Mapping[str, Any], strict: bool = True) -> Any:
    """Loads an unsplit model's state_dict: of each parameter this rank's part. Returns what load_state_dict
    does. Raises RuntimeError, with nothing loaded, for a parameter of another shape."""
    split, own = _split(model), OrderedDict(state)
    for name in own.keys() & split.keys():
        expected, got = list(split[name].shape), list(own[name].shape)
        if expected != got:
            raise RuntimeError(f"load_full_state_dict: {name} is {expected} as a whole, got {got}")
    for name in own.keys() & split.keys():
        own[name] = split[name].like_full(own[name])
    return model.load_state_dict(own, strict=strict)
