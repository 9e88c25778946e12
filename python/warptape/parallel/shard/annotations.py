"""Plain parameters with notes of how they lie on a mesh: those of the package spmd_types, for fully_shard.

Model-parallel code of that kind computes on what a rank holds, with collectives of its own. It says of each
parameter, along an axis of a mesh: V, ranks hold different parts; I, all have the same, and its gradient; R,
all have the same, and each a summand of the gradient. Between passes such a parameter is a DTensor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...distributed import DeviceMesh
from ..dtensor.layout import Layout
from ..dtensor.placement import Placement, Replicate, Shard
from ..dtensor.tensor import become

_NOTES = ("_local_type", "_partition_spec")  # attributes of the tensor


@dataclass
class Annotation:
    """What is noted of one parameter.

    Args:
        mesh: the axes along which fully_shard does not split it.
        placements: along each of them.
        summands: the groups along axes of which each rank has a summand of the gradient.
        notes: attributes, for the full tensor.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    summands: list[Any]
    notes: dict[str, Any]

    def adopt(self, parameter: Any) -> None:
        """Makes a DTensor of what this rank holds.

        Args:
            parameter: the plain one.
        """
        for name in self.notes:
            delattr(parameter, name)
        shape = list(parameter.shape)
        for axis, where in enumerate(self.placements):
            if isinstance(where, Shard):
                shape[where.dim] *= self.mesh.size(axis)
        layout = Layout(self.mesh, self.placements, tuple(shape), parameter.dtype)
        become(parameter, parameter.detach(), layout)


def _dims_of(spec: Sequence[Any] | None) -> dict[Any, int]:
    """Which dim each axis splits."""
    dims: dict[Any, int] = {}
    for dim, entry in enumerate(spec or ()):
        for axis in entry if isinstance(entry, tuple) else [entry] if entry is not None else []:
            dims[axis] = dim
    return dims


def _key(layout: Any) -> tuple[tuple[int, int], ...]:
    return tuple(layout.sizes_and_strides)


def annotation_of(parameter: Any, name: str, mesh: DeviceMesh | None) -> Annotation | None:
    """What is noted of a parameter; None where nothing is, or `mesh` has no axes to tell of.

    Args:
        parameter: plain or a DTensor.
        name: for the message.
        mesh: the axes along which fully_shard does not split.

    Raises: ValueError for an axis of which nothing is noted, or parts along no dim, or a sum.
    """
    spmd = sys.modules.get("spmd_types")
    if mesh is None or spmd is None or not spmd.has_local_type(parameter):
        return None
    types = {_key(axis.layout): kind for axis, kind in spmd.get_local_type(parameter).items()}
    dims = {_key(axis.layout): dim for axis, dim in _dims_of(spmd.get_partition_spec(parameter)).items()}
    placements: list[Placement] = []
    summands: list[Any] = []
    for axis in range(mesh.ndim):
        key = _key(mesh.layout[axis])
        kind = types.get(key)
        if mesh.size(axis) == 1 or kind in (spmd.R, spmd.I):
            placements.append(Replicate())
            if mesh.size(axis) > 1 and kind is spmd.R:
                summands.append(mesh.get_group(axis))
        elif kind is spmd.V and key in dims:
            placements.append(Shard(dims[key]))
        else:
            raise ValueError(
                f"fully_shard: {name} is noted as {kind} along axis {axis} of {mesh}; expected R, I, or V "
                "with the dim that is split"
            )
    notes = {each: getattr(parameter, each) for each in _NOTES if hasattr(parameter, each)}
    return Annotation(mesh, tuple(placements), summands, notes)
