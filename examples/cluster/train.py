"""Trains on Parquet shards with any number of ranks; what was interrupted goes on, to the bit.

    python examples/cluster/train.py --data DIR --checkpoints DIR                      one process
    warptape-run --nproc-per-node 2 examples/cluster/train.py --data DIR ..            one host
    sbatch examples/cluster/slurm.sh, kubectl apply -f examples/cluster/kubernetes.yaml, python launch_ray.py

The program is the same for all of them: the launch line says how many ranks there are and where.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import warptape as torch
import warptape.distributed as dist
from shards import ParquetStream, loader
from warptape import nn
from warptape.distributed.checkpoint import Checkpoints
from warptape.nn.parallel import DistributedDataParallel


def network() -> nn.Module:
    """[B, 64] -> logits [B, 10]"""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(options: argparse.Namespace) -> dict[str, float]:
    """Trains from the newest checkpoint to the last epoch; steps, and the sum of all parameters."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    model = network()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    stream = ParquetStream(options.data / "train", options.batch_size // world, rank, world, options.seed)
    checkpoints = Checkpoints(options.checkpoints, keep_last=2)
    state = {"model": model, "optimizer": optimizer, "epoch": 0, "batch": 0}
    if checkpoints.load(state) is not None and rank == 0:
        print(f"goes on at epoch {state['epoch']}, batch {state['batch']}", flush=True)
    step = state["epoch"] * len(stream) + state["batch"]
    for epoch in range(state["epoch"], options.epochs):
        for pixels, labels in loader(stream, epoch, state["batch"]):
            loss = nn.functional.cross_entropy(parallel(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            state |= {"epoch": epoch, "batch": state["batch"] + 1}
            if step % options.save_every == 0:
                checkpoints.save(state, step, wait=True)
            if step == options.fail_at:
                os._exit(17)  # as on a machine that is lost
        state |= {"epoch": epoch + 1, "batch": 0}
    checkpoints.save(state, step + 1, wait=True)
    if rank == 0:
        torch.save(model.state_dict(), options.checkpoints / "model.pt")
    return {"steps": step, "parameters": float(sum(p.detach().double().sum() for p in model.parameters()))}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="of prepare.py: a folder with train/*.parquet"
    )
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all ranks share")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="over all ranks")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    parser.add_argument("--fail-at", type=int, default=0, help="end at this step, to try what follows")
    options = parser.parse_args()
    dist.init_process_group()
    if options.batch_size % dist.get_world_size():
        parser.error(f"--batch-size {options.batch_size} does not divide by {dist.get_world_size()} ranks")
    result = train(options)
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
