"""Which slices of a sequence each rank holds, so that causal attention is as much work on every rank.

A sequence is cut into 2n slices; rank i holds slices i and 2n - 1 - i ("The Llama 3 Herd of Models",
arXiv:2407.21783, section 3.3.2). A query early in the sequence sees few keys and one at its end sees all: the
two together see as many on every rank.
"""

from __future__ import annotations

from typing import Any

from warptape import core as wt

from ...core import Tensor
from ...distributed import all_gather_into_tensor
from ...distributed.state import Group, resolve


def zigzag(ranks: int) -> list[int]:
    """The slices in the order of the ranks that hold them: [0, 7, 1, 6, 2, 5, 3, 4] of 4 ranks.

    With causal attention each rank then has the same work: an early slice and a late one.

    Args:
        ranks: how many.

    >>> from warptape.parallel.context.order import zigzag
    >>> zigzag(2)
    [0, 3, 1, 2]
    """
    return [number for i in range(ranks) for number in (i, 2 * ranks - 1 - i)]


def check_length(x: Tensor, dim: int, ranks: int, what: str) -> None:
    """Raises ValueError and TypeError for what cannot be cut into two slices for each rank along `dim`.

    Args:
        x: what is cut.
        dim: of the sequence.
        ranks: how many.
        what: names the tensor in the error.
    """
    if not isinstance(x, wt.Tensor):
        raise TypeError(f"{what}: expected a Tensor, got {type(x).__name__}")
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"{what}: expected a sequence dim of {list(x.shape)}, got {dim}")
    length = x.shape[dim]
    if length == 0 or length % (2 * ranks):
        more = max(1, -(-length // (2 * ranks))) * 2 * ranks
        raise ValueError(
            f"{what}: dim {dim} of size {length} does not divide into 2 * {ranks} slices, two for each rank; "
            f"pad the sequence to {more}, or use fewer ranks"
        )


def shard_sequence(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """This rank's two slices of `dim`, joined: [.., T, ..] -> [.., T / n, ..], recorded. No collective.

    Raises: ValueError for a length that is no multiple of 2n.
    """
    pg = resolve(group)
    check_length(x, dim, pg.size(), "shard_sequence")
    slices = x.chunk(2 * pg.size(), dim)
    return wt.cat([slices[pg.rank()], slices[-1 - pg.rank()]], dim)


def in_order(x: Tensor, dim: int, ranks: int) -> Tensor:
    """The slices of all ranks, joined rank after rank along `dim`, in the order of the sequence.

    Args:
        x: all slices, rank after rank.
        dim: of the sequence.
        ranks: how many.
    """
    held = x.chunk(2 * ranks, dim)
    by_number = dict(zip(zigzag(ranks), held, strict=True))
    return wt.cat([by_number[i] for i in range(2 * ranks)], dim)


def by_rank(x: Tensor, dim: int, ranks: int) -> Tensor:
    """The inverse of in_order.

    Args:
        x: the sequence.
        dim: of the sequence.
        ranks: how many.
    """
    slices = x.chunk(2 * ranks, dim)
    return wt.cat([slices[i] for i in zigzag(ranks)], dim)


def unshard_sequence(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """The whole of what shard_sequence has cut, on every rank: [.., T / n, ..] -> [.., T, ..]. Collective;
    not recorded."""
    pg = resolve(group)
    own: Any = x.detach().contiguous()
    shards = wt.empty((pg.size(), *own.shape), dtype=own.dtype, device=own.device)
    all_gather_into_tensor(shards, own, pg)
    return in_order(wt.cat(list(shards.unbind(0)), dim), dim, pg.size())
