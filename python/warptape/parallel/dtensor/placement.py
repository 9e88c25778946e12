"""Where the values of a tensor lie on a mesh axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warptape import core as wt

from ...core import Tensor
from ...distributed import DeviceMesh
from ...distributed.state import state


class Placement:
    """How a tensor lies on one axis of a mesh.

    `Shard(dim)`, `Replicate()` and `Partial()` are the kinds.
    """

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether it is split (along `dim`).

        Args:
            dim: None for any.
        """
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Whether every rank holds all of it."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether the ranks hold what is still to be reduced (by `reduce_op`).

        Args:
            reduce_op: None for any.
        """
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@dataclass(frozen=True)
class Replicate(Placement):
    """Every rank holds the full tensor, and the whole of its gradient.

    >>> from warptape.distributed.tensor import Replicate
    >>> Replicate().is_replicate()
    True
    """

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True)
class Partial(Placement):
    """Every rank holds a summand of the tensor. A DTensor may also be what `reduce_op` makes of what the
    ranks hold: "avg", "max", "min" or "product".
    """

    reduce_op: str = "sum"

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op})"

    def __str__(self) -> str:
        return f"P({self.reduce_op})"


@dataclass(frozen=True)
class Shard(Placement):
    """Every rank holds a part along `dim`; where it does not divide, the last ranks hold less, or nothing.

    `parts` are the sizes of tensors that are joined along `dim` into one, such as queries, keys and values:
    each of them is split by itself, so that a rank holds a part of each. A single number is that of parts
    of one size.
    """

    dim: int
    parts: int | tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"Shard(dim={self.dim}{'' if self.parts is None else f', parts={self.parts}'})"

    def __str__(self) -> str:
        return f"S({self.dim})"

    @staticmethod
    def _local_shard_size_and_offset(curr_local_size: int, num_chunks: int, rank: int) -> tuple[int, int]:
        """How much of a size a rank has, and from where on: chunks of equal size, the last ones shorter."""
        most = -(-curr_local_size // num_chunks)
        offset = min(most * rank, curr_local_size)
        return min(most, curr_local_size - offset), offset

    def sizes(self, size: int) -> list[int]:
        """The parts of a whole `size`.

        Args:
            size: of the full dim.
        """
        if self.parts is None:
            return [size]
        if isinstance(self.parts, int):
            return [size // self.parts] * self.parts
        return list(self.parts)

    def check(self, size: int, ranks: int, what: str) -> None:
        """Raises ValueError if `what`, of that size, cannot be split.

        Args:
            size: of the full dim.
            ranks: how many.
            what: names the dim in the error.
        """
        if sum(self.sizes(size)) != size:
            raise ValueError(f"{what} is {size}, which is not what parts={self.parts} make up; change parts")
        for part in self.sizes(size):
            if part % ranks:
                of = f", in parts of {self.sizes(size)}," if self.parts else ""
                raise ValueError(
                    f"{what} is {size}{of} and does not divide among the {ranks} ranks of the mesh; make "
                    f"{'the part' if self.parts else 'it'} {-(-part // ranks) * ranks} instead of {part}, or "
                    "use another number of ranks"
                )

    def ranges(self, size: int, rank: int, ranks: int) -> list[tuple[int, int]]:
        """(start, length) in the full dim of what a rank holds, in order.

        Args:
            size: of the full dim.
            rank, ranks: which of how many.

        >>> from warptape.distributed.tensor import Shard
        >>> Shard(0).ranges(5, 1, 2)
        [(3, 2)]
        """
        out, start = [], 0
        for part in self.sizes(size):
            most = -(-part // ranks)
            before = min(rank * most, part)
            out.append((start + before, min(most, part - before)))
            start += part
        return out

    @staticmethod
    def local_shard_size_and_offset(curr_local_size: int, num_chunks: int, rank: int) -> tuple[int, int]:
        """(length, start) of a rank's shard of a dim of that size.

        Args:
            curr_local_size: of the dim.
            num_chunks: how many ranks.
            rank: which of them.
        """
        [(start, length)] = Shard(0).ranges(curr_local_size, rank, num_chunks)
        return length, start

    def take(self, full: Tensor, rank: int, ranks: int) -> Tensor:
        """What a rank holds of the full tensor, in memory of its own.

        Args:
            full: the full tensor.
            rank, ranks: which of how many.
        """
        ranges = self.ranges(int(full.shape[self.dim]), rank, ranks)
        return wt.cat([full.narrow(self.dim, start, length) for start, length in ranges], self.dim)

    def join(self, held: Sequence[Tensor], size: int) -> Tensor:
        """The whole of that size, from what all ranks hold, `padded`.

        Args:
            held: of all ranks, in order.
            size: of the full dim.
        """
        parts = self.sizes(size)
        by_rank = [x.split([-(-part // len(held)) for part in parts], self.dim) for x in held]
        joined = [wt.cat([x[i] for x in by_rank], self.dim) for i in range(len(parts))]
        cut = [x.narrow(self.dim, 0, part) for x, part in zip(joined, parts, strict=True)]
        return cut[0] if len(cut) == 1 else wt.cat(cut, self.dim)

    def padded(self, held: Tensor, size: int, ranks: int) -> Tensor:
        """What a rank holds, as long along `dim` as what the first rank does.

        Args:
            held: what the rank holds.
            size: of the full dim.
            ranks: how many.
        """
        most = sum(-(-part // ranks) for part in self.sizes(size))
        if held.shape[self.dim] == most:
            return held.contiguous()
        shape = list(held.shape)
        shape[self.dim] = most
        out = wt.zeros(shape, dtype=held.dtype, device=held.device)
        out.narrow(self.dim, 0, held.shape[self.dim]).copy_(held)
        return out


@dataclass(frozen=True)
class _StridedShard(Shard):
    """A split that comes after those of later axes of the mesh: as fully_shard's of what tensor parallelism,
    on a later axis, split along the same dim before. `split_factor` is the number of shards there were."""

    split_factor: int = 1

    def __repr__(self) -> str:
        return f"_StridedShard(dim={self.dim}, sf={self.split_factor})"

    def __str__(self) -> str:
        return f"_S({self.dim}, {self.split_factor})"


Ranges = list[tuple[int, int]]  # (start, length) along a dim, in order


def within(held: Ranges, start: int, length: int) -> Ranges:
    """Of what ranges make up, joined, a part, as ranges of the full tensor.

    Args:
        held: (start, length) pairs.
        start, length: of the shard.
    """
    out, at = [], 0
    for begin, n in held:
        first, last = max(start, at), min(start + length, at + n)
        if first < last:
            out.append((begin + first - at, last - first))
        at += n
    return out


def check_mesh(mesh: DeviceMesh, where: str) -> DeviceMesh:
    """Raises ValueError for a mesh that tensor parallelism cannot use: the same on every rank.

    Args:
        mesh: what the caller gave.
        where: names the function in the error.
    """
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"{where}: expected a DeviceMesh, got {type(mesh).__name__}")
    if mesh.ndim != 1:
        raise ValueError(
            f"{where}: expected a mesh of one axis, got {mesh}; pass one of its axes: mesh['tp']"
        )
    world, root = state().world_size, mesh.root
    if root.size() != world:
        raise ValueError(
            f"{where}: the mesh {root} has {root.size()} ranks and the job has {world}; make the product of "
            f"the mesh's axes {world}, or start {root.size()} processes"
        )
    return mesh
