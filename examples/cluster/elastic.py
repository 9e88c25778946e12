"""A training that goes on while nodes come and go, with the same result to rounding as on one process.

    export WARPTAPE_SECRET=...                                                   the same on each node
    warptape-run --nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=host0:29400 --max-restarts=10 \\
        examples/cluster/elastic.py --checkpoints /shared/run                    on each node, at any time

When a node joins, leaves or is lost the launchers start all ranks again, as many as there are now, and these
go on from the newest checkpoint. The batch of a step is the same for any number of ranks: each takes every
world-size-th sample of it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import warptape as torch
import warptape.distributed as dist
from warptape import nn
from warptape.distributed.checkpoint import Checkpoints
from warptape.nn.parallel import DistributedDataParallel
from warptape.utils.data import DataLoader, TensorDataset


def samples(count: int) -> TensorDataset:
    """What a fixed network answers to random inputs: ([16], [1]) float64 each."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 16, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))


def batches(rows: int, size: int, steps: range, rank: int, world: int) -> list[list[int]]:
    """Of each step, the rows of its batch that are this rank's."""
    each = rows // size  # steps of an epoch
    result = []
    for step in steps:
        epoch, place = divmod(step, each)
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(epoch)).tolist()
        result.append(order[place * size : (place + 1) * size][rank::world])
    return result


def train(options: argparse.Namespace) -> dict[str, float]:
    """Trains from the newest checkpoint to the last step; steps, and the sum of all parameters."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"model": model, "optimizer": optimizer, "step": 0}
    checkpoints = Checkpoints(options.checkpoints, keep_last=2)
    checkpoints.load(state)
    first = state["step"]
    if rank == 0:
        print(f"goes on at step {first} with {world} ranks", flush=True)
    data = samples(512)
    mine = batches(len(data), options.batch_size, range(first, options.steps), rank, world)
    for step, (x, y) in enumerate(DataLoader(data, batch_sampler=mine), start=first + 1):
        # The sum over ranks divided by their number, as DDP takes it, is the mean over the whole batch.
        loss = nn.functional.mse_loss(parallel(x), y, reduction="sum") * world / options.batch_size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state["step"] = step
        time.sleep(options.pause)
        if step % options.save_every == 0 or step == options.steps:
            checkpoints.save(state, step, wait=True)
    return {"steps": state["step"], "parameters": float(sum(p.detach().sum() for p in model.parameters()))}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all ranks share")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=32, help="over all ranks, which are no more")
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step, to see it happen")
    options = parser.parse_args()
    dist.init_process_group()
    if options.batch_size < dist.get_world_size():
        parser.error(f"--batch-size {options.batch_size} is less than {dist.get_world_size()} ranks")
    result = train(options)
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
