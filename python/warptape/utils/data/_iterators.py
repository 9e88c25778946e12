"""A pass over a DataLoader: what those with and without worker processes share, and the one without."""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, SupportsIndex

from ...autograd.ranges import record_function
from ...core.hooks import RemovableHandle, add_hook
from ._state import Progress, random_states
from ._utils.pin_memory import pin_memory
from ._utils.share import Share, WorkerPlan
from .sampler import draw_seed

_hooks: OrderedDict[int, Callable[[Any], None]] = OrderedDict()


def register_batch_hook(hook: Callable[[Any], None]) -> RemovableHandle:
    """Registers `hook(batch)` to run with each batch before a DataLoader gives it.

    Args:
        hook: must not change the batch.

    Returns:
        A handle whose `remove()` takes the hook away.
    """
    return add_hook(_hooks, hook)


class _BaseDataLoaderIter:
    """One pass over a loader."""

    def __init__(self, loader: Any) -> None:
        # The parts of the loader, not the loader, which keeps an iterator with persistent workers.
        self._dataset, self._num_workers = loader.dataset, loader.num_workers
        self._sampler = loader._index_sampler
        self._pin = _pinner(loader)
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"
        self._start(loader, draws_seed=True)
        if self._progress.seed is None:
            # Drawn also where no worker will use it: the random stream then goes on as with PyTorch's loader.
            self._progress.seed = draw_seed(loader.generator)
        self._base_seed = self._progress.seed

    def _start(self, loader: Any, draws_seed: bool = False) -> None:
        self._progress = loader._pass = Progress(loader, draws_seed)
        self._indices = self._progress.indices(loader)
        self._yielded = 0
        self._promised = loader._promised

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begins the next pass."""
        self.__init__(loader)  # type: ignore[misc]

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
        for hook in tuple(_hooks.values()):
            hook(batch)
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

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """Loads in this process."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._streams = loader._stream
        plan = WorkerPlan.of(loader, self._base_seed, None)
        self._shares: list[Share] = []
        if self._streams and self._progress.resumed is None:
            self._progress.random = random_states()
        if self._progress.resumed is not None and loader._share_states and self._progress.shares:
            # The pass was divided among workers, whose parts this process gives now.
            self._shares = [Share(plan, number, True) for number in range(self._progress.shares)]
            return
        share = Share(plan, 0, False)
        self._fetch = share.open()
        if share.has_states():
            self._progress.live = share.state

    def _next_data(self) -> Any:
        progress = self._progress
        try:
            if self._shares:
                return self._next_of_shares()
            wanted = next(self._indices)
            if not self._streams:
                progress.batches += 1
                if progress.own_state:
                    progress.keep_state()
                return self._fetch(wanted)
            batch = self._fetch(wanted)
        except StopIteration:
            progress.finished, progress.live = True, None
            raise
        progress.batches += 1
        progress.taken[0] += 1
        return batch

    def _next_of_shares(self) -> Any:
        wanted = next(self._indices)
        for share in self._shares[self._progress.turn :] + self._shares[: self._progress.turn]:
            if share.finished:
                continue
            with contextlib.suppress(StopIteration):
                batch, state = share.batch(wanted)
                self._progress.batches += 1
                self._progress.gave_of(share.number, state)
                return batch
        raise StopIteration


def _pinner(loader: Any) -> Callable[[Any], Any] | None:
    if not loader.pin_memory:
        return None
    if loader.pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,ignore "
            f"pin_memory_device='{loader.pin_memory_device}'.",
            stacklevel=6,
        )
    from ... import cuda

    if not cuda.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory "
            "won't be used.",
            stacklevel=6,
        )
        return None
    return pin_memory
