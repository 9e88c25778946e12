"""Prints what a DataLoader with workers gives, in warptape or in PyTorch: `loading.py torch|warptape METHOD`.

It lies in a file of its own so that spawned workers find its classes.
"""

from __future__ import annotations

import importlib
import random
import sys

import numpy as np

torch = importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "warptape")
data = importlib.import_module(torch.__name__ + ".utils.data")


class Augmented(data.Dataset):
    """Samples of every kind, with numbers of the three generators that loaders seed."""

    def __len__(self):
        return 11

    def __getitem__(self, i):
        drawn = random.random(), np.random.rand(2), torch.rand(2)  # noqa: NPY002
        return (
            torch.full((3,), float(i)),
            i,
            *drawn,
            np.full(2, i, dtype=np.int32),
            {"name": str(i), "f": i / 4},
        )


class Stream(data.IterableDataset):
    """Streams of different lengths."""

    def __iter__(self):
        worker = data.get_worker_info()
        for i in range((5, 9)[worker.id]):
            yield worker.id * 100 + i, worker.num_workers, torch.rand(1)


class Random(data.Sampler):
    """Draws when it is asked for an iterator, not when that is."""

    def __len__(self):
        return 6

    def __iter__(self):
        return iter(torch.randperm(6).tolist())


def note(worker: int) -> None:
    random.random()


def plain(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def show(dataset, passes=2, **options):
    loader = data.DataLoader(dataset, num_workers=2, multiprocessing_context=sys.argv[2], **options)
    for _ in range(passes):
        for batch in loader:
            print(plain(batch))
    print(plain(torch.rand(1)), flush=True)


def main():
    torch.manual_seed(3)
    show(Augmented(), batch_size=4, shuffle=True, worker_init_fn=note)
    if sys.argv[2] == "fork":
        show(Augmented(), batch_size=None, sampler=Random())
        show(Augmented(), batch_size=3, sampler=Random(), generator=torch.Generator().manual_seed(7))
        show(Augmented(), batch_sampler=[[1, 2], [5], [7, 3, 1]], prefetch_factor=1)
        show(Augmented(), batch_size=5, persistent_workers=True, shuffle=True, drop_last=True)
        weights = torch.arange(11.0)
        show(Augmented(), 1, sampler=data.WeightedRandomSampler(weights, 6), prefetch_factor=7)
        show(Augmented(), 1, sampler=data.SubsetRandomSampler([2, 4, 8]))
        show(Augmented(), 1, sampler=data.RandomSampler(range(11), replacement=True, num_samples=40))
        show(data.ConcatDataset([Augmented(), Augmented()]), 1, batch_size=6, shuffle=True)
        show(data.random_split(Augmented(), [0.7, 0.3])[1], batch_size=2)
        show(Stream(), batch_size=None)
        show(Stream(), batch_size=2, persistent_workers=True)
    show(Stream(), batch_size=2, drop_last=True)


if __name__ == "__main__":
    main()
