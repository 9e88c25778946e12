"""A stream of batches out of Parquet files that can go on where it stopped.

Row groups are the unit: each epoch they are shuffled by (seed, epoch), and each rank reads every world-
size-th of them, so no rank opens what it does not need. Position is (epoch, batch), two numbers in a
checkpoint; to go on, row groups before it are skipped by their counts of rows, without reading them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import warptape as torch
from warptape.utils.data import DataLoader, IterableDataset

try:
    import pyarrow.parquet as parquet
except ImportError:
    sys.exit("examples/cluster reads Parquet: pip install pyarrow")


class ParquetStream(IterableDataset):
    """Batches of one epoch for one rank, from `start` on: (pixels [B, 64] float32, labels [B] int64)."""

    def __init__(self, folder: Path, batch_size: int, rank: int, world_size: int, seed: int) -> None:
        self.files = sorted(Path(folder).glob("*.parquet"))
        if not self.files:
            raise FileNotFoundError(f"no *.parquet in {folder}; run prepare.py first")
        self.groups = [
            (file, i, meta.row_group(i).num_rows)
            for file in self.files
            for meta in [parquet.read_metadata(file)]
            for i in range(meta.num_row_groups)
        ]
        self.rows = sum(rows for *_, rows in self.groups)
        if len(self.groups) < world_size:
            raise ValueError(f"{len(self.groups)} row groups are too few for {world_size} ranks")
        self.batch_size, self.rank, self.world_size, self.seed = batch_size, rank, world_size, seed
        self.epoch, self.start = 0, 0

    def mine(self, rank: int) -> list[tuple[Path, int, int]]:
        """Row groups that `rank` reads in this epoch, in order."""
        order = np.random.default_rng((self.seed, self.epoch)).permutation(len(self.groups))
        return [self.groups[i] for i in order[rank :: self.world_size]]

    def __len__(self) -> int:
        """Batches of an epoch: as many on each rank as the rank with the fewest rows has."""
        return min(sum(n for *_, n in self.mine(rank)) for rank in range(self.world_size)) // self.batch_size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        skip, left = self.start * self.batch_size, len(self) - self.start
        pixels, labels = np.empty((0, 64), np.float32), np.empty(0, np.int64)
        for file, group, rows in self.mine(self.rank):
            if skip >= rows:
                skip -= rows
                continue
            table = parquet.ParquetFile(file).read_row_group(group)
            new = np.stack(table["pixels"].to_numpy()).astype(np.float32)
            pixels = np.concatenate([pixels, new[skip:]])
            labels = np.concatenate([labels, table["label"].to_numpy()[skip:].astype(np.int64)])
            skip = 0
            while left > 0 and len(pixels) >= self.batch_size:
                yield torch.from_numpy(pixels[: self.batch_size]), torch.from_numpy(labels[: self.batch_size])
                pixels, labels, left = pixels[self.batch_size :], labels[self.batch_size :], left - 1


def loader(stream: ParquetStream, epoch: int, batch: int) -> DataLoader:
    """The rest of an epoch, read by a worker process ahead of the training."""
    stream.epoch, stream.start = epoch, batch
    return DataLoader(stream, batch_size=None, num_workers=1)
