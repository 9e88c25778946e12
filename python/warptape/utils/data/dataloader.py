"""DataLoader: takes indices from a sampler, samples from a dataset, gives batches."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from warptape.core import Generator

from ..._missing import install_getattr as _install_getattr
from ._iterators import _BaseDataLoaderIter, _SingleProcessDataLoaderIter, register_batch_hook
from ._state import Progress, check, has_state, load_between, save
from ._utils.collate import default_collate, default_convert
from ._utils.fetch import _DatasetKind  # noqa: F401  (PyTorch has it here)
from ._utils.worker import get_worker_info
from .dataset import Dataset, IterableDataset
from .sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler

__all__ = ["DataLoader", "default_collate", "get_worker_info", "register_batch_hook"]

T_co = TypeVar("T_co", covariant=True)


class _InfiniteConstantSampler(Sampler[None]):
    """The sampler of a stream: it has no indices, only the wish for one more sample."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


def _check_workers(num_workers: int, timeout: float, prefetch_factor: int | None, persistent: bool) -> None:
    """Refuses arguments about worker processes that contradict each other.

    Raises:
        ValueError: a negative number, or an option that needs workers while there are none.
    """
    if num_workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if prefetch_factor is not None:
        if num_workers == 0:
            raise ValueError(
                "prefetch_factor option could only be specified in multiprocessing.let num_workers > 0 to "
                "enable multiprocessing, otherwise set prefetch_factor to None."
            )
        if prefetch_factor < 0:
            raise ValueError("prefetch_factor option should be non-negative")
    if persistent and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _checked_context(context: Any, num_workers: int) -> Any:
    """The context object for `multiprocessing_context`.

    Raises:
        ValueError: no such start method, or no workers to start.
        TypeError: neither a context nor a name.
    """
    if context is None:
        return None
    if num_workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={num_workers}"
        )
    import multiprocessing

    if isinstance(context, str):
        known = multiprocessing.get_all_start_methods()
        if context not in known:
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {known!r}, but got "
                f"multiprocessing_context={context!r}"
            )
        context = multiprocessing.get_context(context)
    if not isinstance(context, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the "
            f"start method, but got multiprocessing_context={context}"
        )
    return context


def _processes_iterator() -> Any:
    from ._processes import _MultiProcessingDataLoaderIter  # only where processes are wanted

    return _MultiProcessingDataLoaderIter


class DataLoader(Generic[T_co]):
    """Batches of a dataset, in an order.

    Args:
        dataset: map style (indexed) or iterable style (a stream), or a data pipe of either kind.
        batch_size: samples per batch; None gives single samples.
        shuffle: take a RandomSampler; of a stream-style data pipe, whether its shuffles do so.
        sampler: indices, instead of ``shuffle``.
        batch_sampler: lists of indices, instead of batch_size, shuffle, sampler and drop_last.
        num_workers: processes that load, which end with the iterator or with this process; 0 loads here.
        collate_fn: makes a batch from a list of samples; default ``default_collate``, or ``default_convert``
            for single samples.
        pin_memory: put batches into page-locked memory where there is an accelerator.
        drop_last: leave out a last batch that is not full.
        timeout: seconds to wait for a batch of a worker; 0 waits without limit.
        worker_init_fn: called in each worker with its number.
        multiprocessing_context: "fork", "spawn", "forkserver", or a context of multiprocessing.
        generator: of the random sampler and of the seed from which the workers' seeds come.
        prefetch_factor: batches that each worker makes ahead; 2 unless told.
        persistent_workers: keep the workers from one pass to the next.
        pin_memory_device: deprecated, without effect.
        in_order: give batches in the order of the sampler; else as they come.

    A worker's exception is raised here, of the same class where that can be made of a text, with the worker's
    traceback. Batches of workers lie in memory that the worker wrote; it is written anew after all tensors on
    it are gone.

    Raises:
        ValueError: arguments that exclude each other.
        TypeError: `multiprocessing_context` is none.
        RuntimeError: while iterating: a worker was killed or ended, or was late for `timeout`.

    >>> list(torch.utils.data.DataLoader(range(5), batch_size=2))
    [tensor([0, 1]), tensor([2, 3]), tensor([4])]
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler | Iterable | None = None,
        batch_sampler: Sampler[list] | Iterable[list] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        self.dataset, self.generator, self.in_order, self.timeout = dataset, generator, in_order, timeout
        self.num_workers = num_workers
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.worker_init_fn, self.multiprocessing_context = worker_init_fn, multiprocessing_context
        self.pin_memory, self.pin_memory_device = pin_memory, pin_memory_device
        self._stream = isinstance(dataset, IterableDataset)
        if self._stream:
            self._check_stream(shuffle, sampler, batch_sampler)
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and "
                    "drop_last"
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError(
                "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
            )
        if sampler is None:
            source: Any = dataset
            if self._stream:
                sampler = _InfiniteConstantSampler()
            else:
                sampler = RandomSampler(source, generator=generator) if shuffle else SequentialSampler(source)
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)  # type: ignore[arg-type]
        self.batch_size, self.drop_last = batch_size, drop_last
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.collate_fn = collate_fn or (default_convert if batch_sampler is None else default_collate)
        self.persistent_workers = persistent_workers
        # Whether what was given is counted by worker: of streams, and of datasets that have states.
        self._share_states = self._stream or has_state(dataset)
        self._pass: Progress | None = None  # the newest
        self._resumed: Any = None  # a state that the next pass goes on from
        self._resumed_from: Any = None  # the same, if it began a pass or not
        self._promised: int | None = None  # samples of a stream, once len() was asked
        self._ready = True
        self._iterator: Any = None
        self.check_worker_number_rationality()

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @staticmethod
    def _check_stream(shuffle: object, sampler: object, batch_sampler: object) -> None:
        for name, value in (
            ("shuffle", shuffle or None),
            ("sampler", sampler),
            ("batch_sampler", batch_sampler),
        ):
            if value is not None:
                raise ValueError(
                    f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
                    f"{name}={value}"
                )

    def __setattr__(self, name: str, value: object) -> None:
        fixed = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")
        if name in fixed and self.__dict__.get("_ready"):
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        if name == "multiprocessing_context":
            value = _checked_context(value, self.num_workers)
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pass": None}  # which belongs to this process and its iterators

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            return _SingleProcessDataLoaderIter(self)
        self.check_worker_number_rationality()
        return _processes_iterator()(self)

    def state_dict(self) -> dict[str, Any]:
        """Where the newest pass stands, from which this or another loader goes on; for a checkpoint.

        It counts what the caller got, not what workers made ahead. Later passes are shuffled as they would
        have been where the loader has a ``generator``; else they follow the process's, to be saved beside it.
        Random numbers that a dataset draws by index are not part of it: workers begin with their seeds.

        A stream is read again up to its place, unless it or its iterator has ``state_dict`` and
        ``load_state_dict``. With another number of workers the pass keeps the order of those it began with.

        Raises:
            ValueError: ``in_order`` is False and there are workers.

        >>> loader = torch.utils.data.DataLoader(range(6), batch_size=2)
        >>> first = next(iter(loader))
        >>> loader.load_state_dict(loader.state_dict())
        >>> list(loader)
        [tensor([2, 3]), tensor([4, 5])]
        """
        return save(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lets the next pass give what was left when ``state_dict`` was taken.

        Another number of workers may go on, and with a ``DistributedSampler`` another number of ranks.

        Raises:
            ValueError: the state is of another dataset's length, sampler or number of ranks.
        """
        check(self, state_dict)
        state = copy.deepcopy(state_dict)
        self._pass = self._iterator = None
        self._resumed_from = state
        self._resumed = state if state["begun"] else None
        if not state["begun"]:
            load_between(self, state)

    def __iter__(self) -> Iterator[Any]:
        if not self.persistent_workers:
            return self._get_iterator()
        if self._iterator is None or not self._iterator._lives():
            self._iterator = self._get_iterator()
        else:
            self._iterator._reset(self)
        return self._iterator

    def check_worker_number_rationality(self) -> None:
        """Warns of more workers than processors that this process may use.

        The constructor calls it; nothing changes.
        """
        processors = len(os.sched_getaffinity(0))
        if self.num_workers > processors:
            warnings.warn(
                f"This DataLoader will create {self.num_workers} worker processes in total. Our suggested "
                f"max number of worker in current system is {processors}, which is smaller than what this "
                "DataLoader is going to create. Please be aware that excessive worker creation might get "
                "DataLoader running slow or even freeze, lower the worker number to avoid potential "
                "slowness/freeze if necessary.",
                stacklevel=3,
            )

    def __len__(self) -> int:
        """Batches in one pass. Of a stream it is what the dataset's own ``len()`` promises."""
        if not self._stream:
            return len(self._index_sampler)
        length = self._promised = len(self.dataset)  # type: ignore[arg-type]
        if self.batch_size is not None:
            length = length // self.batch_size if self.drop_last else math.ceil(length / self.batch_size)
        return length


_install_getattr(__name__, _MultiProcessingDataLoaderIter=_processes_iterator)
