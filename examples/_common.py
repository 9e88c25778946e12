"""What the examples share: the command line, the processes of a launcher, batches, pictures.

Under `warptape-run --nproc-per-node N` every process trains on its share of each batch and
DistributedDataParallel averages the gradients, so the weights stay equal; the first process alone prints.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import warptape as wt
import warptape.distributed as dist
from warptape import nn
from warptape.nn.parallel import DistributedDataParallel
from warptape.utils.data import DataLoader, DistributedSampler, TensorDataset


class Parser(argparse.ArgumentParser):
    """One line for a wrong argument, and exit code 2; every example has a seed."""

    def __init__(self, doc: str | None) -> None:
        lines = (doc or "").strip().split("\n")
        super().__init__(description=lines[0])
        self.add_argument("--seed", type=int, default=0, help="of weights, data and batches (default 0)")

    def number(self, flag: str, default: int, what: str) -> None:
        """A whole number of at least 1."""
        self.add_argument(flag, type=at_least_one, default=default, help=f"{what} (default {default})")

    def error(self, message: str) -> Any:
        self.exit(2, f"{self.prog}: {message}\n")


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def ranks() -> tuple[int, int]:
    """This process's number among those that train together, and how many they are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def run(program: Callable[[argparse.Namespace], nn.Module], parser: Parser) -> int:
    """Joins the launcher's other processes, runs the program, says how long it took; the exit code."""
    options = parser.parse_args()
    if dist.is_torchelastic_launched():
        dist.init_process_group()
    if ranks()[0] > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    wt.manual_seed(options.seed)
    start = time.perf_counter()
    try:
        model = program(options)
    except ModuleNotFoundError as error:
        package = {"sklearn": "scikit-learn"}.get(error.name or "", error.name)
        print(f"{parser.prog}: needs {package}: pip install {package}", file=sys.stderr)
        return 2
    if dist.is_initialized():
        same = equal_on_all_ranks(model)
        print(f"{ranks()[1]} processes, whose weights are {'equal' if same else 'DIFFERENT'}")
        dist.destroy_process_group()
        if not same:
            return 1
    print(f"took {time.perf_counter() - start:.1f} s")
    return 0


def share(model: nn.Module, seed: int) -> nn.Module:
    """The module to train through: the model, or DistributedDataParallel of it.

    From here on each process draws other random numbers (dropout, noise, samples).
    """
    rank, count = ranks()
    wt.manual_seed(seed + rank)
    return DistributedDataParallel(model) if count > 1 else model


def batches(data: TensorDataset, size: int, seed: int, epochs: int) -> Iterator[list[wt.Tensor]]:
    """This process's part of shuffled batches that hold `size` samples on all processes together."""
    rank, count = ranks()
    sampler = DistributedSampler(data, count, rank, seed=seed, drop_last=True)
    loader = DataLoader(data, batch_size=max(1, size // count), sampler=sampler, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        yield from loader


@wt.no_grad()
def equal_on_all_ranks(model: nn.Module) -> bool:
    """Whether the parameters are the same, bit for bit, on all processes."""
    flat = wt.cat([p.detach().flatten() for p in model.parameters()])
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return bool((low == high).all())


def save_picture(images: wt.Tensor, path: Path, columns: int = 8) -> None:
    """Writes [N, 1, H, W], from 0 to 1, as one picture, where matplotlib is installed."""
    if ranks()[0] > 0:
        return
    try:
        from matplotlib import image
    except ImportError:
        print(f"no {path}: a picture needs matplotlib: pip install matplotlib")
        return
    framed = nn.functional.pad(images.squeeze(1), (1, 1, 1, 1), value=0.5)  # [N, H + 2, W + 2]
    rows = [wt.cat(list(row), dim=1) for row in framed.split(columns) if len(row) == columns]
    path.parent.mkdir(parents=True, exist_ok=True)
    enlarged = wt.cat(rows).clamp(0, 1).repeat_interleave(6, 0).repeat_interleave(6, 1)
    image.imsave(path, enlarged.numpy(), cmap="gray", vmin=0, vmax=1)
    print(f"picture: {path}")
