"""What a pass of a DataLoader sets in a data pipe: the seed that all readers share, and each one's part."""

from __future__ import annotations

from typing import Any

import warptape

from .datapipes.datapipe import IterDataPipe, MapDataPipe


def ranks_of_job() -> tuple[int, int]:
    """How many ranks the default group has, and which this is; 1 and 0 without one."""
    from ... import distributed as dist

    return (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)


def draw_seed(dataset: Any, generator: Any) -> int | None:
    """The seed of a pass over a stream-style pipe, the first rank's on all of them; None for other data."""
    if not isinstance(dataset, IterDataPipe):
        return None
    seed = [int(warptape.empty((), dtype=warptape.int64).random_(generator=generator).item())]
    if ranks_of_job()[0] > 1:
        from ...distributed import broadcast_object_list

        broadcast_object_list(seed, src=0)
    return seed[0]


def set_seed(dataset: Any, seed: int | None) -> None:
    """Seeds the shuffles of a pipe for a pass."""
    if seed is not None:
        from .graph_settings import apply_random_seed

        apply_random_seed(dataset, warptape.Generator().manual_seed(seed))


def set_shard(dataset: Any, ranks: tuple[int, int], workers: int = 1, worker: int = 0) -> None:
    """Makes a pipe that of one worker of one rank: samples go to ranks in turn, and there to workers."""
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        from .graph_settings import apply_sharding

        world, rank = ranks
        apply_sharding(dataset, workers * world, worker * world + rank)
