"""One rank of benchmarks/distributed.py: `python _distributed_rank.py LIBRARY WHAT`.

LIBRARY is warptape, torch (gloo) or mpi (Open MPI by mpi4py); its own launcher started it. Rank 0 prints
one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

ROUNDS, STEPS = 12, 10  # of ddp
BYTES = [8, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28]


def library(
    name: str, dtype: str
) -> tuple[int, Callable[[int], Any], Callable[[Any], Any], Callable[[], Any]]:
    """(rank, a tensor of n elements, all-reduce of it, barrier)."""
    if name == "mpi":
        import numpy as np
        from mpi4py import MPI

        world = MPI.COMM_WORLD

        def reduce(pair: Any) -> None:
            world.Allreduce(MPI.IN_PLACE, pair, MPI.SUM)

        return world.rank, lambda n: np.ones(n, np.float32), reduce, world.Barrier
    if name == "warptape":
        import warptape as lib
        import warptape.distributed as dist
    else:
        import torch as lib
        import torch.distributed as dist
    dist.init_process_group("gloo")
    lib.set_num_threads(1)
    return dist.get_rank(), lambda n: lib.ones(n, dtype=getattr(lib, dtype)), dist.all_reduce, dist.barrier


def all_reduce(name: str, dtype: str) -> dict[str, Any]:
    """Median seconds of an all-reduce by bytes; the slower rank's, for a barrier stands before each."""
    rank, make, reduce, barrier = library(name, dtype)
    found = {}
    for size in BYTES:
        x = make(size // (2 if dtype == "bfloat16" else 4))
        calls = max(3, min(400, (1 << 24) // size))
        for _ in range(max(2, calls // 10)):
            reduce(x)
        times = []
        for _ in range(7):
            barrier()
            start = time.perf_counter()
            for _ in range(calls if size <= 1 << 20 else 1):
                reduce(x)
            times.append((time.perf_counter() - start) / (calls if size <= 1 << 20 else 1))
        found[str(size)] = sorted(times)[3]
    return {"rank": rank, "seconds": found}


def start(name: str, dtype: str) -> dict[str, Any]:
    """The moment at which the first all-reduce was over."""
    rank, make, reduce, _ = library(name, dtype)
    x = make(2)
    reduce(x)
    return {"rank": rank, "at": time.time()}


def ddp(name: str, dtype: str) -> dict[str, Any]:
    """Seconds of a step of examples/train_gpt.py at its defaults, by turns: of rank 0 alone while the others
    sleep, of all ranks at once but each for itself, and of all together, each with a batch as large."""
    library(name, dtype)
    if name == "warptape":
        import warptape as lib
    else:
        import _harness

        lib = _harness.load_library("torch")
    from _cpu_rows import GPTSteps

    dist = lib.distributed
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found: dict[str, list[float]] = {"alone": [], "apart": [], "together": []}
    alone, together = GPTSteps(lib, dtype, ranks), GPTSteps(lib, dtype, ranks)
    together.model = lib.nn.parallel.DistributedDataParallel(together.model)
    for _ in range(ROUNDS):
        for way, steps in (("alone", alone), ("apart", alone), ("together", together)):
            dist.barrier()
            if way == "alone" and rank != 0:
                continue
            steps()
            start = time.perf_counter()
            for _ in range(STEPS):
                steps()
            found[way].append((time.perf_counter() - start) / STEPS)
    return {"rank": rank, "ranks": ranks, "seconds": found}


if __name__ == "__main__":
    _, name, what, dtype = sys.argv
    result = {"all_reduce": all_reduce, "start": start, "ddp": ddp}[what](name, dtype)
    if result["rank"] == 0:
        print(json.dumps(result), flush=True)
    if name == "warptape":
        import warptape.distributed

        warptape.distributed.destroy_process_group()
    if name == "torch":
        os._exit(0)  # its threads take long to end
