"""How a tensor lies on a mesh: a placement for each axis.

An axis splits what the axes before it have left: on a mesh of [2, 4] ranks, placements (Shard(0), Shard(0))
cut dim 0 into halves, and each half into quarters. A part is what `chunk` gives: the last ranks hold less, or
nothing, where a size does not divide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...distributed import DeviceMesh
from ..tensor.placement import Partial, Placement, Replicate, Shard

REDUCE_OPS = ("sum", "avg", "max", "min", "product")


@dataclass(frozen=True)
class Layout:
    """Shape and placements of a whole tensor, and the mesh."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    dtype: Any = None  # where it is known: what a library reads of a DTensor's `_spec`

    @property
    def ndim(self) -> int:
        """Dims of the tensor."""
        return len(self.shape)

    def with_placements(self, placements: Sequence[Placement]) -> Layout:
        """The same tensor, elsewhere."""
        return Layout(self.mesh, tuple(placements), self.shape, self.dtype)

    def ranges(
        self, coordinate: Sequence[int] | None = None, axes: int | None = None
    ) -> list[tuple[int, int]]:
        """For each dim (start, length) in the whole of what a rank holds, by default this one; after the
        first `axes` of the mesh alone, if given."""
        at = self.mesh.get_coordinate() if coordinate is None else coordinate
        if at is None:  # a rank outside of the mesh holds nothing
            return [(0, 0)] * self.ndim
        out = [(0, n) for n in self.shape]
        for axis, where in enumerate(self.placements[:axes]):
            if isinstance(where, Shard):
                start, size = out[where.dim]
                [(first, length)] = Shard(0).ranges(size, at[axis], self.mesh.size(axis))
                out[where.dim] = (start + first, length)
        return out

    def local_shape(self, coordinate: Sequence[int] | None = None) -> tuple[int, ...]:
        """The shape of what a rank holds."""
        return tuple(length for _, length in self.ranges(coordinate))

    def size_before(self, axis: int) -> int:
        """The length along the dim that an axis splits, where it begins to."""
        where = self.placements[axis]
        assert isinstance(where, Shard)
        return self.ranges(axes=axis)[where.dim][1]

    def parts_of(self, dim: int) -> int:
        """Into how many parts a dim is cut."""
        sizes = (self.mesh.size(i) for i, p in enumerate(self.placements) if p == Shard(dim))
        return math.prod(sizes)


def normalized(placements: Any, mesh: DeviceMesh, ndim: int, where: str) -> tuple[Placement, ...]:
    """Placements as Layout has them: dims counted from the front. None is replicated on all axes.

    Raises: ValueError for another number of placements than axes and for a dim that is not there, TypeError
    for other objects, NotImplementedError for a Shard with `parts`.
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
            if each.parts is not None:
                raise NotImplementedError(
                    f"{where}: {each}: a DTensor knows no joined parts; they are for parallelize_module"
                )
            out.append(Shard(each.dim % ndim))
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
    """The shape of what this rank holds of a tensor, and where it starts in the whole."""
    where = normalized(placements, mesh, len(global_shape), "compute_local_shape_and_global_offset")
    ranges = Layout(mesh, where, tuple(global_shape)).ranges()
    return tuple(n for _, n in ranges), tuple(start for start, _ in ranges)


def compute_local_shape(
    global_shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[int, ...]:
    """The shape of what this rank holds of a tensor."""
    return compute_local_shape_and_global_offset(global_shape, mesh, placements)[0]
