"""What a worker process of a DataLoader knows of itself."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["WorkerInfo", "get_worker_info"]


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """This worker process of a DataLoader: its number, of how many, its seed and copy of the dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any
    rng: Any = None
    worker_method: str | None = "multiprocessing"


_worker_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Information on this worker process; None in the main process."""
    return _worker_info


def _generate_state(base_seed: int, worker_id: int) -> list[int]:
    """The numbers that seed NumPy in a worker: four of 32 bits."""
    import numpy as np

    words = [worker_id, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    return [int(x) for x in np.random.SeedSequence(words).generate_state(4)]


#: In a worker, the `shared.Arena` in which default_collate makes batches.
arena: Any = None
