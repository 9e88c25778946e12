"""Gives every rank its own share of a dataset's indices."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

from warptape import core as wt

from .dataset import Dataset
from .sampler import _Placed

__all__ = ["DistributedSampler"]


def _process_group() -> Any:
    distributed = wt.offered("distributed")
    if not distributed.is_available():
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


def ranks() -> int:
    """The ranks of the process group; 1 where there is none.

    The distributed package is not loaded for the question.
    """
    distributed = sys.modules.get("warptape.distributed")  # who has not loaded it has no group
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


class DistributedSampler(_Placed[int]):
    """Rank ``r`` of ``n`` takes every n-th index from the r-th on, of an order that all ranks share.

    Args:
        num_replicas, rank: default, the process group's.
        shuffle: permute by ``seed + epoch``; call ``set_epoch`` before each epoch, or every epoch's order is
            equal.
        drop_last: leave the tail out instead of repeating samples until the shares are equal.

    A state counts the indices that all ranks have given together, so that another number of ranks can go on
    from it: they share the rest of the epoch's order.

    Raises:
        ValueError: ``rank`` outside [0, num_replicas), or a default is needed and no process group is
            initialised.
        RuntimeError: a default is needed and there is no distributed package.

    Args:
        dataset: gives the length.
        seed: of the order; the same on all ranks.

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
            generator = wt.Generator()
            generator.manual_seed(self.seed + self.epoch)
            order = wt.randperm(length, generator=generator).tolist()
        else:
            order = list(range(length))
        self._take_place()
        start = min(self._first, length)
        rounds = (length - start) / self.num_replicas
        end = start + (math.floor(rounds) if self.drop_last else math.ceil(rounds)) * self.num_replicas
        if length and len(order) < end:
            order *= math.ceil(end / length)
        share = order[start + self.rank : end : self.num_replicas]
        self._run, self._last = iter(share), self._first + len(share)
        return self._run

    def _size(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def _state_at(self, given: int) -> dict[str, Any]:
        given = min(given, self._last - self._first)
        return {
            "yielded": self._first + given * self.num_replicas,
            "length": self._size(),
            "generator": None,
            "epoch": self.epoch,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lets the next pass go on where the state was taken, in the order of its epoch and seed.

        Raises:
            ValueError: the state is of another number of samples, another seed, or the other kind of order.
        """
        for name in ("seed", "shuffle"):
            if state_dict[name] != getattr(self, name):
                raise ValueError(
                    f"DistributedSampler.load_state_dict: the state is of {name}={state_dict[name]}, but "
                    f"this sampler has {name}={getattr(self, name)}"
                )
        super().load_state_dict(state_dict)
        self.epoch = state_dict["epoch"]

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
        if self._place is not None and epoch != self.epoch:
            self._place = None  # another epoch starts at its beginning
        self.epoch = epoch
