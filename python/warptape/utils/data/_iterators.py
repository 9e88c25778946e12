"""A pass over a DataLoader: what those with and without worker processes share, and the one without."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import warptape

from ...autograd.profiler import record_function
from ._utils.fetch import fetcher
from ._utils.pin_memory import pin_memory

if TYPE_CHECKING:
    from .dataloader import DataLoader


class _BaseDataLoaderIter:
    """One pass over a loader."""

    def __init__(self, loader: DataLoader) -> None:
        # The parts of the loader, not the loader, which keeps an iterator with persistent workers.
        self._dataset, self._num_workers = loader.dataset, loader.num_workers
        self._sampler = loader._index_sampler
        self._pin = _pinner(loader)
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"
        self._start(loader)
        # Drawn also where no worker will use it: the random stream then goes on as with PyTorch's loader.
        seed = warptape.empty((), dtype=warptape.int64).random_(generator=loader.generator)
        self._base_seed = int(seed.item())

    def _start(self, loader: DataLoader) -> None:
        self._indices = iter(self._sampler)
        self._yielded = 0
        self._promised = loader._promised

    def __iter__(self) -> _BaseDataLoaderIter:
        return self

    def _next_data(self) -> Any:
        raise NotImplementedError

    def __next__(self) -> Any:
        with record_function(self._profile_name):
            batch = self._next_data()
            if self._pin is not None:
                batch = self._pin(batch)
        self._yielded += 1
        if self._promised is not None and self._yielded > self._promised:
            advice = (
                " For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker: each must take its own part of the stream, see "
                "get_worker_info"
                if self._num_workers
                else ""
            )
            warnings.warn(
                f"Length of IterableDataset {self._dataset} was reported to be {self._promised} "
                f"(when accessing len(dataloader)), but {self._yielded} samples have been fetched.{advice}",
                stacklevel=2,
            )
        return batch

    def __len__(self) -> int:
        return len(self._sampler)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """Loads in this process."""

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader)
        self._fetch = fetcher(
            loader.dataset,
            loader._stream,
            loader.batch_sampler is not None,
            loader.collate_fn,
            loader.drop_last,
        )

    def _next_data(self) -> Any:
        return self._fetch(next(self._indices))


def _pinner(loader: DataLoader) -> Callable[[Any], Any] | None:
    if not loader.pin_memory:
        return None
    if loader.pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,ignore "
            f"pin_memory_device='{loader.pin_memory_device}'.",
            stacklevel=6,
        )
    if not warptape.cuda.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory "
            "won't be used.",
            stacklevel=6,
        )
        return None
    return pin_memory
