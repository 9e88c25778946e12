"""Gives every rank its own share of a dataset's indices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import warptape

from .dataset import Dataset
from .sampler import Sampler

__all__ = ["DistributedSampler"]


def _process_group() -> Any:
    distributed = getattr(warptape, "distributed", None)
    if distributed is None or not distributed.is_available():
        raise RuntimeError(
            "DistributedSampler: expected the distributed package for num_replicas and rank, but this build "
            "has none; pass num_replicas and rank"
        )
    if not distributed.is_initialized():
        raise ValueError(
            "DistributedSampler: expected an initialised process group to ask for num_replicas and rank, got "
            "none; call distributed.init_process_group() first, or pass num_replicas and rank"
        )
    return distributed


class DistributedSampler(Sampler[int]):
    """Rank ``r`` of ``n`` takes every n-th index from the r-th on, of an order that all ranks share.

    Args:
        num_replicas, rank: default, the process group's.
        shuffle: permute by ``seed + epoch``; call ``set_epoch`` before each epoch, or every epoch's order is
            equal.
        drop_last: leave the tail out instead of repeating samples until the shares are equal.

    Raises:
        ValueError: ``rank`` outside [0, num_replicas), or a default is needed and no process group is
            initialised.
        RuntimeError: a default is needed and there is no distributed package.

    >>> from warptape.utils.data.distributed import DistributedSampler
    >>> list(DistributedSampler(range(4), num_replicas=2, rank=1, shuffle=False))
    [1, 3]
    """

    def __init__(
        self,
        dataset: Dataset,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None:
            num_replicas = int(_process_group().get_world_size())
        if rank is None:
            rank = int(_process_group().get_rank())
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.epoch, self.drop_last, self.shuffle, self.seed = 0, drop_last, shuffle, seed
        length = len(dataset)  # type: ignore[arg-type]
        self.num_samples = length // num_replicas if drop_last else math.ceil(length / num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        length = len(self.dataset)  # type: ignore[arg-type]
        if self.shuffle:
            generator = warptape.Generator()
            generator.manual_seed(self.seed + self.epoch)
            order = warptape.randperm(length, generator=generator).tolist()
        else:
            order = list(range(length))
        if length and len(order) < self.total_size:
            order *= math.ceil(self.total_size / length)
        return iter(order[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch's order. Call it on all ranks before the loader's iterator is made.

        >>> from warptape.utils.data.distributed import DistributedSampler
        >>> sampler = DistributedSampler(range(4), num_replicas=2, rank=1)
        >>> sampler.set_epoch(1)
        >>> len(list(sampler))
        2
        """
        self.epoch = epoch
