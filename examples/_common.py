"""What the examples share: the command line, the processes of a launcher, batches, text, pictures.

Under `warptape-run --nproc-per-node N` every process trains on its share of each batch and
DistributedDataParallel averages the gradients, so the weights stay equal; the first process alone prints.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import warptape as wt
import warptape.distributed as dist
from gpt_text import standard_library
from train_gpt import InputError, one_line
from warptape import nn
from warptape.nn.parallel import DistributedDataParallel
from warptape.utils.data import DataLoader, DistributedSampler, TensorDataset


class Parser(argparse.ArgumentParser):
    """One line for a wrong argument, and exit code 2; every example has a seed."""

    def __init__(self, doc: str | None) -> None:
        lines = (doc or "").strip().split("\n")
        super().__init__(description=lines[0])
        self.divided: list[str] = []
        what = "of weights, data and batches (default 0)"
        self.add_argument("--seed", type=whole_number(0, 2**32 - 1), default=0, help=what)

    def number(self, flag: str, default: int, what: str, divided: bool = False) -> None:
        """A whole number of at least 1; one that is `divided` is of all processes together."""
        if divided:
            self.divided.append(flag[2:])
            what += ", on all processes together"
        self.add_argument(flag, type=whole_number(1), default=default, help=f"{what} (default {default})")

    def folder(self) -> None:
        """--out, the folder of the picture."""
        self.add_argument("--out", type=folder, default="out", help="folder of the picture (default out)")

    def error(self, message: str) -> Any:
        self.exit(2, f"{self.prog}: {message}\n")


def whole_number(least: int, most: float = math.inf) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            up_to = f" and at most {most}" if most < math.inf else ""
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}{up_to}")
        return int(text)

    return parse


def folder(text: str) -> Path:
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(one_line(error)) from error
    return Path(text)


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
        for flag in parser.divided:
            if (given := getattr(options, flag)) % ranks()[1]:
                raise InputError(f"--{flag} {given}: does not divide among {ranks()[1]} processes")
        model = program(options)
    except ModuleNotFoundError as error:
        package = {"sklearn": "scikit-learn"}.get(error.name or "", error.name)
        return refuse(parser, f"needs {package}: pip install {package}")
    except InputError as error:
        return refuse(parser, str(error))
    if dist.is_initialized():
        same = equal_on_all_ranks(model)
        print(f"{ranks()[1]} processes, whose weights are {'equal' if same else 'DIFFERENT'}")
        dist.destroy_process_group()
        if not same:
            return 1
    print(f"took {time.perf_counter() - start:.1f} s")
    return 0


def refuse(parser: Parser, message: str) -> int:
    """Says in one line, from the first process, what is wrong; the exit code."""
    if ranks()[0] == 0:
        print(f"{parser.prog}: {message}", file=sys.stderr)
    else:
        time.sleep(2)  # or the launcher would stop the first process before it has said so
    return 2


def share(model: nn.Module, seed: int) -> nn.Module:
    """The module to train through: the model, or DistributedDataParallel of it.

    From here on each process draws other random numbers (dropout, noise, samples).
    """
    rank, count = ranks()
    wt.manual_seed(seed + rank)
    return DistributedDataParallel(model) if count > 1 else model


def steps_of_epoch(data: TensorDataset, size: int) -> int:
    """How many batches of `size` samples, on all processes together, one pass over the data has."""
    steps = len(data) // size
    if steps == 0:
        raise InputError(f"--batch {size}: there are {len(data)} samples")
    return steps


def batches(data: TensorDataset, size: int, seed: int, epochs: int) -> Iterator[list[wt.Tensor]]:
    """This process's part of shuffled batches that hold `size` samples on all processes together."""
    steps_of_epoch(data, size)  # there is one
    rank, count = ranks()
    sampler = DistributedSampler(data, count, rank, seed=seed, drop_last=True)
    loader = DataLoader(data, batch_size=size // count, sampler=sampler, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        yield from loader


def read_library(size: int) -> np.ndarray:
    """The first bytes of the source of Python's standard library, uint8 [size]."""
    text = bytearray()
    for file in standard_library():
        text += file.read_bytes()
        if len(text) >= size:
            break
    return np.frombuffer(text, dtype=np.uint8)[:size]


@wt.no_grad()
def equal_on_all_ranks(model: nn.Module) -> bool:
    """Whether the parameters are the same, bit for bit, on all processes, but for those they share out."""
    shared_out = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    flat = wt.cat([p.detach().flatten() for name, p in model.named_parameters() if name not in shared_out])
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
    enlarged = wt.cat(rows).clamp(0, 1).repeat_interleave(6, 0).repeat_interleave(6, 1)
    image.imsave(path, enlarged.numpy(), cmap="gray", vmin=0, vmax=1)
    print(f"picture: {path}")
