"""Orders of a sequence in which ranks that share it have equal work, for masks of any kind.

`order.py` has that of causal attention alone. Here an order is given as indices, and a BlockMask is made anew
for the queries of a rank and all keys: PyTorch's `_context_parallel_shard`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from ...core import Tensor
from ...distributed import DeviceMesh
from ...nn.attention.flex_attention import BlockMask, create_block_mask
from .order import zigzag


class LoadBalancer(ABC):
    """Which position comes where, before the ranks cut the sequence into equal parts."""

    @abstractmethod
    def _generate_indices(self, restore: bool = False) -> Tensor | None:
        """int [1 or batch, positions]: the position that comes at each place; with `restore` the inverse."""


class HeadTailLoadBalancer(LoadBalancer):
    """Rank i of n has slices i and 2n - 1 - i of 2n, for causal masks.

    Args:
        seq_length: a multiple of 2n.
        world_size: n.
        device: of the indices.

    Raises: AssertionError for another length.
    """

    def __init__(self, seq_length: int, world_size: int, device: Any) -> None:
        self.seq_length, self.world_size, self.device = seq_length, world_size, device

    def _generate_indices(self, restore: bool = False) -> Tensor:
        if self.seq_length % (2 * self.world_size):
            raise AssertionError(
                f"expected a length of a multiple of {2 * self.world_size}, got {self.seq_length}"
            )
        slices = wt.arange(self.seq_length, dtype=wt.int32, device=self.device).reshape(
            2 * self.world_size, -1
        )
        indices = slices[zigzag(self.world_size)].flatten()
        return (wt.argsort(indices) if restore else indices).unsqueeze(0)


class PTRRLoadBalancer(LoadBalancer):
    """Blocks of queries by their number of blocks of keys, dealt out to n ranks back and forth, for any mask.

    Args:
        block_mask: of one head, with square blocks.
        world_size: n, which divides the number of blocks.

    Raises: AssertionError and NotImplementedError for other blocks.
    """

    def __init__(self, block_mask: BlockMask, world_size: int) -> None:
        self.block_mask, self.world_size = block_mask, world_size

    @staticmethod
    def ptrr_scheduling(process_time: Tensor, group_size: int) -> Tensor:
        """[n] times of tasks -> int [group_size, n / group_size]: the tasks of each group, in their order.

        Args:
            process_time: of each task.
            group_size: the number of groups.

        Raises: NotImplementedError where it does not divide n.
        """
        n = process_time.shape[0]
        if n % group_size:
            raise NotImplementedError(f"num_tasks {n} must be divisible by group_size {group_size}")
        turns = wt.argsort(process_time, descending=True, stable=True).reshape(-1, group_size)
        turns[1::2] = turns[1::2].flip(1)
        return turns.transpose(0, 1).sort(dim=1).values

    def _generate_indices(self, restore: bool = False) -> Tensor:
        rows, columns = self.block_mask.BLOCK_SIZE
        if rows != columns:
            raise AssertionError(f"expected blocks of equal sides, got {self.block_mask.BLOCK_SIZE}")
        counts = self.block_mask.to_dense().sum(-1).flatten(0, 1)  # [batch, blocks]
        dealt = [self.ptrr_scheduling(each, self.world_size).flatten() for each in counts]
        within = wt.arange(rows, device=counts.device)
        indices = (wt.stack(dealt).unsqueeze(-1) * rows + within).flatten(1)
        return wt.argsort(indices, dim=1) if restore else indices


def _cut(buffer: Tensor, dim: int, mesh: DeviceMesh, indices: Tensor | None) -> Tensor:
    """This rank's part of a tensor in the order of `indices`, which has one row, or one for each batch."""
    n, size = mesh.size(), buffer.shape[dim]
    if size % n:
        raise ValueError(
            f"_context_parallel_shard: {n} ranks do not divide dim {dim} of {list(buffer.shape)}"
        )
    if indices is not None and indices.shape[0] > 1 and (dim == 0 or buffer.shape[0] != indices.shape[0]):
        raise ValueError(
            f"_context_parallel_shard: an order for each of {indices.shape[0]} batches does not fit a buffer "
            f"{list(buffer.shape)} with the sequence in dim {dim}"
        )
    start = mesh.get_local_rank() * (size // n)
    if indices is None:
        return buffer.narrow(dim, start, size // n).contiguous()
    own = indices.narrow(1, start, size // n).to(wt.int64)
    if own.shape[0] == 1:
        return buffer.index_select(dim, own[0])
    shape = [own.shape[0] if d == 0 else -1 if d == dim else 1 for d in range(buffer.ndim)]
    index_shape = list(buffer.shape)
    index_shape[dim] = own.shape[1]
    return buffer.gather(dim, own.reshape(shape).expand(index_shape))


def _cut_mask(mask: BlockMask, mesh: DeviceMesh, indices: Tensor | None) -> BlockMask:
    """The mask of this rank's queries and all keys, both in the order of `indices`."""
    (queries, keys), (rows, columns), n = mask.seq_lengths, mask.BLOCK_SIZE, mesh.size()
    if queries % (n * rows):
        raise NotImplementedError(
            f"_context_parallel_shard: {queries} queries are no multiple of {n} ranks times blocks of {rows}"
        )
    start, full_mask = mesh.get_local_rank() * (queries // n), mask.mask_mod

    def seen(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        q_idx = q_idx + start
        if indices is not None:
            order = indices[0] if indices.shape[0] == 1 else indices[b]
            return full_mask(b, h, order[..., q_idx], order[..., kv_idx])
        return full_mask(b, h, q_idx, kv_idx)

    batch, heads = mask.kv_num_blocks.shape[:2]
    device = mask.kv_num_blocks.device
    return create_block_mask(
        seen, batch, heads, queries // n, keys, device=device, BLOCK_SIZE=(rows, columns)
    )


def context_parallel_shard(
    mesh: DeviceMesh,
    buffers: Sequence[Tensor | BlockMask],
    seq_dims: Sequence[int],
    load_balancer: LoadBalancer | None = None,
) -> list[Tensor | BlockMask]:
    """This rank's part of tensors, and of masks the part for its queries and all keys. No collective.

    Args:
        mesh: of one axis, whose ranks share the sequence.
        buffers: of whole sequences.
        seq_dims: the dim of the sequence of each; a mask's is that of queries, whatever is given.
        load_balancer: the order of positions in which ranks cut; None leaves it.

    Raises: ValueError for a length that ranks do not divide, or another number of dims; NotImplementedError
        for a mask whose blocks they do not divide.
    """
    if len(buffers) != len(seq_dims):
        raise ValueError("`seq_dims` must have the same number of elements as `buffers`.")
    indices = None if load_balancer is None else load_balancer._generate_indices()
    return [
        _cut_mask(each, mesh, indices) if isinstance(each, BlockMask) else _cut(each, dim, mesh, indices)
        for each, dim in zip(buffers, seq_dims, strict=True)
    ]
