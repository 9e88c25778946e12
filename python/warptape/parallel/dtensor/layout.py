"""How a tensor lies on a mesh: a placement for each axis.

An axis splits what the axes before it have left: on a mesh of [2, 4] ranks, placements (Shard(0), Shard(0))
cut dim 0 into halves, and each half into quarters; _StridedShard splits what all other axes have left. A part
is what `chunk` gives: the last ranks hold less, or nothing, where a size does not divide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...distributed import DeviceMesh
from .placement import Partial, Placement, Ranges, Replicate, Shard, _StridedShard, within

REDUCE_OPS = ("sum", "avg", "max", "min", "product")


@dataclass(frozen=True)
class Layout:
    """Shape and placements of a full tensor, and the mesh.

    Args:
        mesh: over whose ranks it lies.
        placements: one for each axis of the mesh.
        shape: of the full tensor.
        dtype: None where it does not matter.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    dtype: Any = None  # where it is known: what a library reads of a DTensor's `_spec`

    @property
    def ndim(self) -> int:
        """Dims of the tensor."""
        return len(self.shape)

    def with_placements(self, placements: Sequence[Placement]) -> Layout:
        """The same tensor, elsewhere.

        Args:
            placements: one for each axis of the mesh.
        """
        return Layout(self.mesh, tuple(placements), self.shape, self.dtype)

    @property
    def order(self) -> list[int]:
        """The axes, in the order in which they split."""
        return split_order(self.placements)

    def regions(self, coordinate: Sequence[int] | None = None, until: int | None = None) -> list[Ranges]:
        """For each dim the (start, length) in the full dim of what a rank holds, by default this one; as it
        is before axis `until` splits, if given."""
        at = self.mesh.get_coordinate() if coordinate is None else coordinate
        if at is None:  # a rank outside of the mesh holds nothing
            return [[(0, 0)] for _ in self.shape]
        out: list[Ranges] = [[(0, n)] for n in self.shape]
        for axis in self.order:
            where = self.placements[axis]
            if axis == until:
                break
            if isinstance(where, Shard):
                held = out[where.dim]
                taken = where.ranges(sum(n for _, n in held), at[axis], self.mesh.size(axis))
                out[where.dim] = [r for part in taken for r in within(held, *part)] or [(sum(held[-1]), 0)]
        return out

    def local_shape(self, coordinate: Sequence[int] | None = None) -> tuple[int, ...]:
        """The shape of what a rank holds.

        Args:
            coordinate: of the rank in the mesh; this one's if None.
        """
        return tuple(sum(n for _, n in held) for held in self.regions(coordinate))

    def size_before(self, axis: int) -> int:
        """The length along the dim that an axis splits, where it begins to.

        Args:
            axis: of the mesh.
        """
        where = self.placements[axis]
        assert isinstance(where, Shard)
        return sum(n for _, n in self.regions(until=axis)[where.dim])

    def shards_of(self, dim: int) -> int:
        """Into how many parts a dim is cut.

        Args:
            dim: of the tensor.
        """
        return math.prod(self.mesh.size(i) for i, p in enumerate(self.placements) if p.is_shard(dim))

    def groups_of_shards(self) -> tuple[Any, ...]:
        """The groups of ranks among which the tensor is split."""
        axes = [i for i, p in enumerate(self.placements) if p.is_shard() and self.mesh.size(i) > 1]
        return tuple(self.mesh.get_group(i) for i in axes)


def split_order(placements: Sequence[Placement]) -> list[int]:
    """The axes of a mesh in the order in which they split: strided ones after the others.

    Args:
        placements: one for each axis of the mesh.
    """
    return sorted(range(len(placements)), key=lambda axis: isinstance(placements[axis], _StridedShard))


def normalized(placements: Any, mesh: DeviceMesh, ndim: int, where: str) -> tuple[Placement, ...]:
    """Placements as Layout has them: dims counted from the front. None is replicated on all axes.

    Raises: ValueError for another number of placements than axes and for a dim that is not there, TypeError
    for other objects.
    """
    if placements is None:
        return (Replicate(),) * mesh.ndim
    given = tuple(placements)
    if len(given) != mesh.ndim:
        raise ValueError(
            f"{where}: expected a placement for each of the {mesh.ndim} axes of the mesh, got {list(given)}"
        )
    out: list[Placement] = []
    for each in given:
        if isinstance(each, Shard):
            if not -ndim <= each.dim < ndim:
                raise ValueError(f"{where}: {each} of a tensor of {ndim} dims; give a dim below {ndim}")
            out.append(replace(each, dim=each.dim % ndim))
        elif isinstance(each, Partial):
            if each.reduce_op not in REDUCE_OPS:
                raise ValueError(
                    f"{where}: Partial's reduce_op is one of {REDUCE_OPS}, got {each.reduce_op!r}"
                )
            out.append(each)
        elif isinstance(each, Replicate):
            out.append(each)
        elif isinstance(each, Placement):
            raise NotImplementedError(f"{where}: {each!r} is not supported; use Shard, Replicate and Partial")
        else:
            raise TypeError(f"{where}: expected Shard, Replicate or Partial, got {each!r}")
    kinds = {p.reduce_op for p in out if isinstance(p, Partial)}
    if len(kinds) > 1 and not kinds <= {"sum", "avg"}:
        raise ValueError(
            f"{where}: the value of {out} would depend on the axis that is reduced first; of Partial on "
            "several axes give one reduce_op"
        )
    return tuple(out)


def compute_local_shape_and_global_offset(
    global_shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of what this rank holds of a tensor, and where it starts in the full tensor.

    Args:
        global_shape: of the full tensor.
        mesh: over whose ranks it lies.
        placements: one for each axis of the mesh.
    """
    where = normalized(placements, mesh, len(global_shape), "compute_local_shape_and_global_offset")
    layout = Layout(mesh, where, tuple(global_shape))
    return layout.local_shape(), tuple(held[0][0] for held in layout.regions())


def compute_local_shape(
    global_shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[int, ...]:
    """The shape of what this rank holds of a tensor.

    Args:
        global_shape: of the full tensor.
        mesh: over whose ranks it lies.
        placements: one for each axis of the mesh.
    """
    return compute_local_shape_and_global_offset(global_shape, mesh, placements)[0]
