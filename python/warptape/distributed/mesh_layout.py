"""Sets of ranks as sizes and strides: what an axis of a mesh is, whichever rank it starts at.

After the layouts of CuTe (NVIDIA CUTLASS, "CuTe layout algebra"), in the order of rows: the last size is the
innermost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

Nested = Any  # an int, or a tuple of these


def _flat(value: Nested) -> list[int]:
    return [value] if isinstance(value, int) else [x for part in value for x in _flat(part)]


def _row_major(shape: Nested, inner: int = 1) -> Nested:
    """Strides of that structure such that the numbers of a full grid come one after the other."""
    if isinstance(shape, int):
        return inner
    out: list[Nested] = []
    for part in reversed(shape):
        out.insert(0, _row_major(part, inner))
        inner *= math.prod(_flat(part))
    return tuple(out)


@dataclass(frozen=True, init=False)
class _FlatLayout:
    """The ranks of one axis, counted from its first: all sums of multiples of the strides below the sizes.

    Layouts that give the same ranks in the same order are equal: sizes of 1 go, and neighbours become one.

    Args:
        shape: sizes, the innermost last; tuples may be nested.
        stride: of the same structure; those of a full grid if None.

    Raises: ValueError where the two do not fit, TypeError for anything else than ints and tuples.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __init__(self, shape: Nested, stride: Nested = None) -> None:
        for name, value in (("shape", shape), ("stride", 0 if stride is None else stride)):
            if not isinstance(value, int | tuple):
                raise TypeError(f"{name} must be a tuple or int, got {type(value)}")
        sizes, steps = _flat(shape), _flat(_row_major(shape) if stride is None else stride)
        if len(sizes) != len(steps):
            raise ValueError(f"sizes {shape} and strides {stride} don't match")
        joined: list[tuple[int, int]] = []
        for size, step in zip(sizes, steps, strict=True):
            if size == 1:
                continue
            if joined and joined[-1][1] == size * step:
                joined[-1] = joined[-1][0] * size, step
            else:
                joined.append((size, step))
        object.__setattr__(self, "shape", tuple(size for size, _ in joined))
        object.__setattr__(self, "stride", tuple(step for _, step in joined))

    def numel(self) -> int:
        """How many ranks."""
        return math.prod(self.shape)

    @property
    def sizes_and_strides(self) -> Iterator[tuple[int, int]]:
        """A pair for each size."""
        return zip(self.shape, self.stride, strict=True)

    def all_ranks_from_zero(self) -> list[int]:
        """The ranks, where the first is 0."""
        steps = (range(0, size * step, step) if step else [0] * size for size, step in self.sizes_and_strides)
        return [sum(at) for at in itertools.product(*steps)]

    def complement(self, world_size: int) -> _FlatLayout:
        """The first ranks of all lines like this one that together are the ranks below `world_size`."""
        gaps: list[tuple[int, int]] = []
        reached = 1
        for size, step in sorted(self.sizes_and_strides, key=lambda pair: pair[1]):
            gaps.insert(0, (step // reached, reached))
            reached = size * step
        gaps.insert(0, (-(-world_size // reached), reached))
        return _FlatLayout(tuple(n for n, _ in gaps), tuple(step for _, step in gaps))

    def global_ranks(self, world_size: int) -> list[list[int]]:
        """The ranks of all lines like this one below `world_size`."""
        firsts = self.complement(world_size).all_ranks_from_zero()
        return [[first + rank for rank in self.all_ranks_from_zero()] for first in firsts]


@dataclass(frozen=True, init=False)
class _MeshLayout(Sequence[_FlatLayout]):
    """The axes of a mesh, a _FlatLayout each.

    Args:
        axes: of the mesh, in order.
    """

    axes: tuple[_FlatLayout, ...]

    def __init__(self, axes: Iterable[_FlatLayout]) -> None:
        object.__setattr__(self, "axes", tuple(axes))

    @classmethod
    def from_sizes_strides(
        cls, sizes: tuple[int, ...], strides: tuple[int, ...] | None = None
    ) -> _MeshLayout:
        """One axis for each size. Raises ValueError for another number of strides."""
        steps = _row_major(sizes) if strides is None else strides
        if len(sizes) != len(steps):
            raise ValueError(
                f"sizes and strides must have the same length, got {len(sizes)} and {len(steps)}"
            )
        return cls(_FlatLayout(n, step) for n, step in zip(sizes, steps, strict=True))

    def __len__(self) -> int:
        return len(self.axes)

    @overload
    def __getitem__(self, i: int) -> _FlatLayout: ...

    @overload
    def __getitem__(self, i: slice) -> _MeshLayout: ...

    def __getitem__(self, i: int | slice) -> _FlatLayout | _MeshLayout:
        return _MeshLayout(self.axes[i]) if isinstance(i, slice) else self.axes[i]

    @property
    def top_level_sizes(self) -> tuple[int, ...]:
        """Ranks along each axis."""
        return tuple(axis.numel() for axis in self.axes)

    def numel(self) -> int:
        """How many ranks."""
        return math.prod(self.top_level_sizes)

    def collapse(self) -> _FlatLayout:
        """All axes as one."""
        return _FlatLayout(tuple(a.shape for a in self.axes), tuple(a.stride for a in self.axes))


def _of_ranks(ranks: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides that give rising ranks, of which the first is 0.

    Raises:
        AssertionError: they are no grid.
    """
    shape: list[int] = []
    stride: list[int] = []
    while len(ranks) > 1:
        step = math.gcd(*(b - a for a, b in itertools.pairwise(ranks)))
        held = set(ranks)
        firsts = [rank for rank in ranks if rank - step not in held]
        size = len(ranks) // max(len(firsts), 1)
        if not step or sorted(r + i * step for r in firsts for i in range(size)) != list(ranks):
            raise AssertionError(f"ranks {list(ranks)} are no regular grid")
        shape.insert(0, size)
        stride.insert(0, step)
        ranks = firsts
    return tuple(shape), tuple(stride)
