"""DataLoader: takes indices from a sampler, samples from a dataset, gives batches; in this process."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import warptape

from ._utils.collate import default_collate, default_convert
from .dataset import Dataset, IterableDataset
from .sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler

if TYPE_CHECKING:
    from warptape import Generator

__all__ = ["DataLoader", "default_collate", "get_worker_info"]

T_co = TypeVar("T_co", covariant=True)

_worker_info: Any = None


def get_worker_info() -> Any:
    """Information on this worker process; None in the main process, where all loading happens now."""
    return _worker_info


class _Endless(Sampler[None]):
    """The sampler of a stream: it has no indices, only the wish for one more sample."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


def _check_workers(
    num_workers: int, timeout: float, prefetch_factor: int | None, persistent: bool, context: Any
) -> None:
    """Refuses the arguments about worker processes that cannot be served.

    Raises:
        ValueError: a negative count or timeout, or an option that needs workers while there are none.
        NotImplementedError: any workers at all.
    """
    if num_workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers > 0:
        raise NotImplementedError(
            f"DataLoader: expected num_workers=0, got {num_workers}: worker processes come in a later "
            "release. Use num_workers=0, which loads in the main process"
        )
    if prefetch_factor is not None:
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing. "
            "let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
        )
    if persistent:
        raise ValueError("persistent_workers option needs num_workers > 0")
    if context is not None:
        raise ValueError(
            f"multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={num_workers}"
        )


class DataLoader(Generic[T_co]):
    """Batches of a dataset, in an order.

    Args:
        dataset: map style (indexed) or iterable style (a stream).
        batch_size: samples per batch; None gives single samples.
        shuffle: take a RandomSampler.
        sampler: indices, instead of ``shuffle``.
        batch_sampler: lists of indices, instead of batch_size, shuffle, sampler and drop_last.
        num_workers: only 0 so far.
        collate_fn: makes a batch from a list of samples; default ``default_collate``, or ``default_convert``
            for single samples.
        pin_memory: put batches into page-locked memory where there is an accelerator.
        drop_last: leave out a last batch that is not full.
        timeout, worker_init_fn, multiprocessing_context, prefetch_factor, persistent_workers, in_order: about
            worker processes; checked, and without effect while there are none.
        generator: of the random sampler and the base seed.
        pin_memory_device: accepted, without effect.

    Raises:
        ValueError: arguments that exclude each other.
        NotImplementedError: ``num_workers`` above 0.
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
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers, multiprocessing_context)
        self.dataset, self.generator, self.in_order, self.timeout = dataset, generator, in_order, timeout
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
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
                sampler = _Endless()
            else:
                sampler = RandomSampler(source, generator=generator) if shuffle else SequentialSampler(source)
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)  # type: ignore[arg-type]
        self.batch_size, self.drop_last = batch_size, drop_last
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.collate_fn = collate_fn or (default_convert if batch_sampler is None else default_collate)
        self.persistent_workers = persistent_workers
        self._promised: int | None = None  # what len() last said of a stream
        self._ready = True

    @staticmethod
    def _check_stream(shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
        for name, given in (
            ("shuffle", shuffle or None),
            ("sampler", sampler),
            ("batch_sampler", batch_sampler),
        ):
            if given is not None:
                raise ValueError(
                    f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
                    f"{name}={given}"
                )

    def __setattr__(self, name: str, value: Any) -> None:
        fixed = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")
        if name in fixed and self.__dict__.get("_ready"):
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def __iter__(self) -> Iterator[Any]:
        return _SingleProcessDataLoaderIter(self)

    def __len__(self) -> int:
        """Batches in one pass. Of a stream it is what the dataset's own ``len()`` promises."""
        if not self._stream:
            return len(self._index_sampler)
        length = len(self.dataset)  # type: ignore[arg-type]
        if self.batch_size is not None:
            length = length // self.batch_size if self.drop_last else math.ceil(length / self.batch_size)
        self._promised = length
        return length


class _SingleProcessDataLoaderIter:
    """One pass over a loader."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._indices = iter(loader._index_sampler)
        self._fetch = _fetcher(loader)
        self._pin = _pinner(loader)
        self._yielded = 0
        self._promised = loader._promised
        # Drawn though only workers would use it: the random stream then goes on as with PyTorch's loader.
        seed = warptape.empty((), dtype=warptape.int64).random_(generator=loader.generator)
        self._base_seed = int(seed.item())

    def __iter__(self) -> _SingleProcessDataLoaderIter:
        return self

    def __next__(self) -> Any:
        batch = self._fetch(next(self._indices))
        if self._pin is not None:
            batch = self._pin(batch)
        self._yielded += 1
        if self._promised is not None and self._yielded > self._promised:
            warnings.warn(
                f"DataLoader: len() of the loader over IterableDataset {self._loader.dataset} was "
                f"{self._promised} batches, but {self._yielded} have been fetched; check the dataset's "
                "__len__",
                stacklevel=2,
            )
        return batch

    def __len__(self) -> int:
        return len(self._loader._index_sampler)


def _fetcher(loader: DataLoader) -> Callable[[Any], Any]:
    """The function from one entry of the index sampler to one batch."""
    dataset: Any = loader.dataset
    collate = loader.collate_fn
    batched = loader.batch_sampler is not None
    if loader._stream:
        return functools.partial(_next_of_stream, iter(dataset), collate, batched, loader.drop_last)
    if not batched:
        return lambda index: collate(dataset[index])
    many = getattr(dataset, "__getitems__", None)
    if callable(many):
        return lambda indices: collate(many(indices))
    return lambda indices: collate([dataset[i] for i in indices])


def _next_of_stream(stream: Iterator, collate: Callable, batched: bool, drop_last: bool, wanted: Any) -> Any:
    if not batched:
        return collate(next(stream))
    samples = [sample for _, sample in zip(wanted, stream)]
    if not samples or (drop_last and len(samples) < len(wanted)):
        raise StopIteration
    return collate(samples)


def _pinner(loader: DataLoader) -> Callable[[Any], Any] | None:
    if not loader.pin_memory:
        return None
    cuda = getattr(warptape, "cuda", None)
    if cuda is None or not cuda.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory "
            "won't be used.",
            stacklevel=3,
        )
        return None
    return _pin


def _pin(data: Any) -> Any:
    """``data`` with every tensor in page-locked memory. Objects of other types may bring ``pin_memory()``."""
    if isinstance(data, warptape.Tensor):
        return data.pin_memory()
    if isinstance(data, Mapping):
        return {key: _pin(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_pin(value) for value in data))
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return [_pin(value) for value in data]
    return data.pin_memory() if hasattr(data, "pin_memory") else data
