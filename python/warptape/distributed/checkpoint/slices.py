"""Where in a whole tensor lies what a rank, or a file, holds of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core import Tensor
from ...core.placed import Placed

Slice = tuple[tuple[int, ...], tuple[int, ...]]  # where it starts in the whole, and its shape
MOST_CELLS = 1 << 20  # of the grid that slices cut a tensor into


@dataclass
class Held:
    """A tensor of this rank as part of a whole one.

    `slices` are its parts of the whole, in the order in which they lie along `dim` of `tensor`. `any_holder`:
    all ranks that hold a slice are known to hold the same values, so that any of them may write it.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    dim: int = 0
    slices: list[Slice] = field(default_factory=list)
    any_holder: bool = False
    checksum: int | None = None  # of a tensor that nothing says all ranks have alike

    def local(self, i: int) -> Tensor:
        """The part of `tensor` that is slice i.

        Args:
            i: a number of a slice.
        """
        if len(self.slices) == 1:
            return self.tensor
        start = sum(size[self.dim] for _, size in self.slices[:i])
        return self.tensor.narrow(self.dim, start, self.slices[i][1][self.dim])


def held(tensor: Tensor, like: Any = None, *, any_holder: bool = False) -> Held:
    """How `tensor` lies in the whole: as `like` (or it) says by `held_slices()`; else it is the whole.

    Args:
        tensor: this rank's part.
        like: a parameter or tensor that lies in the same way.
        any_holder: whether another rank may write what several hold.
    """
    placed = tensor if like is None else like
    if not isinstance(placed, Placed):
        shape = tuple(int(n) for n in tensor.shape)
        return Held(tensor, shape, 0, [((0,) * len(shape), shape)], any_holder)
    shape, dim, slices = placed.held_slices()
    if isinstance(tensor, Placed):
        tensor = tensor.to_local().detach()
    return Held(tensor, tuple(shape), dim, slices, any_holder)


def overlap(a: Slice, b: Slice) -> Slice | None:
    """What two slices have in common; None for nothing.

    Args:
        a, b: starts and sizes.

    >>> from warptape.distributed.checkpoint.slices import overlap
    >>> overlap(((0,), (4,)), ((2,), (5,)))
    ((2,), (2,))
    """
    starts = tuple(max(x, y) for x, y in zip(a[0], b[0]))
    ends = tuple(min(x + n, y + m) for x, n, y, m in zip(a[0], a[1], b[0], b[1]))
    sizes = tuple(e - s for s, e in zip(starts, ends))
    return None if any(n <= 0 for n in sizes) else (starts, sizes)


def within(inner: Slice, outer: Slice) -> tuple[slice, ...]:
    """The index of a slice in the tensor that is another one.

    Args:
        inner: lies in `outer`.
        outer: starts and sizes.

    >>> from warptape.distributed.checkpoint.slices import within
    >>> within(((3,), (2,)), ((2,), (5,)))
    (slice(1, 3, None),)
    """
    return tuple(slice(s - o, s - o + n) for s, n, o in zip(inner[0], inner[1], outer[0]))


def fault_of_tiling(shape: Sequence[int], slices: Sequence[Slice]) -> str | None:
    """Why slices do not make up a whole of that shape, each element once; None if they do.

    Args:
        shape: of the whole.
        slices: starts and sizes.
    """
    for start, size in slices:
        if len(start) != len(shape) or len(size) != len(shape):
            return f"a part has {len(size)} dims, and the whole has {len(shape)}"
        if any(s < 0 or n < 0 or s + n > length for s, n, length in zip(start, size, shape)):
            return f"the part {list(size)} at {list(start)} does not lie in {list(shape)}"
    slices = [where for where in slices if math.prod(where[1])]
    if sum(math.prod(size) for _, size in slices) != math.prod(shape):
        return f"its parts have {sum(math.prod(n) for _, n in slices)} elements, not {math.prod(shape)}"
    if len(slices) <= 1:
        return None
    cuts = [sorted({0, length, *(s[d] for s, _ in slices)}) for d, length in enumerate(shape)]
    if math.prod(len(c) for c in cuts) > MOST_CELLS:
        return f"it is cut into more than {MOST_CELLS} cells"
    seen: set[tuple[int, ...]] = set()
    for start, size in slices:
        inside = [[c for c in cut if s <= c < s + n] for cut, s, n in zip(cuts, start, size)]
        for cell in itertools.product(*inside):
            if cell in seen:
                return f"its parts overlap at {list(cell)}"
            seen.add(cell)
    return None
