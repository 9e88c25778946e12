"""What fully_shard refuses, and its policies of where shards lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ... import core as wt
from ... import nn
from ...distributed import DeviceMesh
from ..dtensor.placement import Shard
from ..dtensor.tensor import DTensor
from .annotations import Annotation
from .group import MixedPrecisionPolicy


@dataclass
class OffloadPolicy:
    """Parameters stay on their device.

    It is the default; CPUOffloadPolicy keeps them on the host.
    """


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Shards, their gradients and so the optimizer's state lie on the CPU, full tensors on the mesh's device
    for the time that a module needs them. With `pin_memory` shards and gradients are in page-locked memory,
    so that copies run while the device computes."""

    pin_memory: bool = True


@dataclass
class DataParallelMeshDims:
    """Which axes of a mesh fully_shard takes; along the others parameters lie already.

    Args:
        shard: the names of the axes, as one, along which parameters are split.
        replicate: the names of the axes, as one, whose ranks have copies.

    Raises: ValueError where both are None.
    """

    shard: str | tuple[str, ...] | None = None
    replicate: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.shard is None and self.replicate is None:
            raise ValueError("DataParallelMeshDims: expected shard or replicate, got None for both")

    @property
    def shard_names(self) -> tuple[str, ...]:
        """As a tuple."""
        return _names(self.shard)

    @property
    def replicate_names(self) -> tuple[str, ...]:
        """As a tuple."""
        return _names(self.replicate)

    def split(self, mesh: DeviceMesh) -> tuple[DeviceMesh, DeviceMesh | None]:
        """The axes that fully_shard takes, one for copies and one for shards, and the others. Collective
        where several become one.

        Args:
            mesh: with names.

        Raises: ValueError for names that it does not have.
        """
        names, both = mesh.mesh_dim_names or (), (self.replicate_names, self.shard_names)
        taken = both[0] + both[1]
        if not set(taken) <= set(names) or len(set(taken)) < len(taken):
            raise ValueError(f"fully_shard: expected dp_mesh_dims out of the axes {names}, got {self}")
        meshes = [
            mesh[each] if len(each) == 1 else mesh[each].flatten("_".join(each)) for each in both if each
        ]
        others = tuple(name for name in names if name not in taken)
        return DeviceMesh.concatenate(meshes), mesh[others] if others else None


def _names(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def check_options(reshard: Any, policy: Any, placement: Any, offload: Any) -> None:
    """Raises TypeError and NotImplementedError for fully_shard's options."""
    if reshard is not None and not (isinstance(reshard, int) and (isinstance(reshard, bool) or reshard > 0)):
        raise TypeError(
            f"fully_shard: reshard_after_forward is True, False, None or a number of ranks, got {reshard!r}"
        )
    if not isinstance(policy, MixedPrecisionPolicy):
        raise TypeError(f"fully_shard: expected a MixedPrecisionPolicy, got {type(policy).__name__}")
    for name in ("param_dtype", "reduce_dtype", "output_dtype"):
        dtype = getattr(policy, name)
        if dtype is not None and not (isinstance(dtype, wt.dtype) and dtype.is_floating_point):
            raise TypeError(f"fully_shard: {name} is a floating dtype or None, got {dtype!r}")
    if placement is not None and not callable(placement):
        raise TypeError(
            f"fully_shard: shard_placement_fn is called with a parameter, got {type(placement).__name__}"
        )
    if offload is not None and not isinstance(offload, OffloadPolicy):
        raise TypeError(f"fully_shard: expected an OffloadPolicy, got {type(offload).__name__}")


def dim_of(p: Any, name: str, placement: Callable[[Any], Shard | None] | None) -> int:
    """Along which dim a parameter is to be split. Raises TypeError and ValueError."""
    where = None if placement is None else placement(p)
    if where is None:
        return 0
    if not isinstance(where, Shard) or where.parts is not None:
        raise TypeError(f"fully_shard: shard_placement_fn gives Shard(dim) or None, got {where!r} for {name}")
    if not -p.ndim <= where.dim < p.ndim:
        raise ValueError(f"fully_shard: {name} is {list(p.shape)}, and shard_placement_fn gives {where!r}")
    return where.dim % p.ndim


def check_parameter(
    p: Any, place: tuple[nn.Module, str], mesh: DeviceMesh, offloaded: bool, annotation: Annotation | None
) -> DeviceMesh:
    """Raises ValueError for one that cannot be split; returns the mesh of all axes along which it then is."""
    name = f"fully_shard: {place[1]}"
    if p.ndim == 0:
        raise ValueError(f"{name} has no dims; make it a parameter of shape [1]")
    if p.device.type not in (mesh.device_type, "meta", "cpu" if offloaded else "meta"):
        raise ValueError(f"{name} is on {p.device} and the mesh is of {mesh.device_type!r}; move one of them")
    if annotation is not None:
        return DeviceMesh.concatenate([mesh, annotation.mesh])
    if not isinstance(p, DTensor):
        return mesh
    own, before = mesh.mesh_dim_names, p.device_mesh.mesh_dim_names
    if own is None or before is None or mesh.root is not p.device_mesh.root or set(own) & set(before):
        raise ValueError(
            f"{name} is split along {p.device_mesh}; take the axes for it and for fully_shard from one mesh, "
            "init_device_mesh(..., mesh_dim_names=('dp', 'tp'))"
        )
    return DeviceMesh.concatenate([mesh, p.device_mesh])
