"""Sources of samples: by index (map style) or as a stream (iterable style), and datasets made of datasets."""

from __future__ import annotations

import bisect
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from warptape import core as wt
from warptape.core import Generator, Tensor

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "StackDataset",
    "Subset",
    "TensorDataset",
    "random_split",
]

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """Base of map-style datasets: define ``__getitem__(index)`` and usually ``__len__()``.

    ``__getitems__(indices)``, if there, fetches a whole batch at once and returns a list of samples.

    >>> class Squares(torch.utils.data.Dataset):
    ...     def __len__(self):
    ...         return 3
    ...     def __getitem__(self, index):
    ...         return index**2
    >>> [Squares()[i] for i in range(3)]
    [0, 1, 4]
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: Dataset[T_co]) -> ConcatDataset[T_co]:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co], Iterable[T_co]):
    """Base of stream-style datasets: define ``__iter__()``.

    >>> class Count(torch.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return iter(range(3))
    >>> list(torch.utils.data.DataLoader(Count(), batch_size=None))
    [0, 1, 2]
    """

    def __add__(self, other: Dataset[T_co]) -> ChainDataset:  # type: ignore[override]
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple]):
    """Sample ``i`` is ``(tensors[0][i], tensors[1][i], ...)``.

    Raises:
        AssertionError: the tensors' first dimensions differ.

    Args:
        *tensors: of the same first dimension.

    >>> torch.utils.data.TensorDataset(torch.arange(3), torch.arange(3) ** 2)[2]
    (tensor(2), tensor(4))
    """

    def __init__(self, *tensors: Tensor) -> None:
        sizes = [t.size(0) for t in tensors]
        if any(size != sizes[0] for size in sizes):
            raise AssertionError(
                f"TensorDataset: Size mismatch between tensors: expected one first dimension, got {sizes}"
            )
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].size(0)


class StackDataset(Dataset[Any]):
    """Sample ``i`` is the tuple (or, from keywords, the dict) of every dataset's sample ``i``.

    Raises:
        ValueError: no dataset, positional and keyword datasets together, or different lengths.

    Args:
        *args: datasets for tuples.
        **kwargs: datasets for dicts.

    >>> torch.utils.data.StackDataset(range(3), "abc")[1]
    (1, 'b')
    """

    def __init__(self, *args: Dataset, **kwargs: Dataset) -> None:
        if args and kwargs:
            raise ValueError(
                "Supported either ``tuple``- (via ``args``) or ``dict``- (via ``kwargs``) like input/output, "
                "but both types are given."
            )
        if not args and not kwargs:
            raise ValueError("At least one dataset should be passed")
        self.datasets: Any = args or kwargs
        sizes = [len(d) for d in (args or kwargs.values())]  # type: ignore[arg-type]
        if any(size != sizes[0] for size in sizes):
            raise ValueError(f"Size mismatch between datasets: expected one length, got {sizes}")
        self._length = sizes[0]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {key: d[index] for key, d in self.datasets.items()}
        return tuple(d[index] for d in self.datasets)

    def __getitems__(self, indices: list) -> list:
        if isinstance(self.datasets, dict):
            columns = [_samples(d, indices) for d in self.datasets.values()]
            return [dict(zip(self.datasets, row)) for row in zip(*columns)]
        return list(zip(*(_samples(d, indices) for d in self.datasets)))

    def __len__(self) -> int:
        return self._length


def _samples(dataset: Any, indices: list) -> list:
    """The samples at ``indices``, in one call if the dataset has one."""
    many = getattr(dataset, "__getitems__", None)
    if not callable(many):
        return [dataset[i] for i in indices]
    samples = many(indices)
    if len(samples) != len(indices):
        raise ValueError(
            f"Nested dataset's output size mismatch. Expected {len(indices)}, got {len(samples)} from "
            f"{type(dataset).__name__}.__getitems__"
        )
    return samples


class ConcatDataset(Dataset[T_co]):
    """The given datasets one after the other.

    Raises:
        ValueError: none given, or an IterableDataset among them.

    Args:
        datasets: map-style datasets, in order.

    >>> len(torch.utils.data.ConcatDataset([range(2), range(3)]))
    5
    """

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets should not be an empty iterable")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise AssertionError("ConcatDataset does not support IterableDataset; use ChainDataset")
        lengths = (len(d) for d in self.datasets)  # type: ignore[arg-type]
        self.cumulative_sizes = list(itertools.accumulate(lengths))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, idx: int) -> T_co:
        if idx < 0:
            if -idx > len(self):
                raise ValueError("absolute value of index should not exceed dataset length")
            idx += len(self)
        which = bisect.bisect_right(self.cumulative_sizes, idx)
        if which == len(self.datasets):
            raise IndexError(f"ConcatDataset: index {idx} is out of range for {len(self)} samples")
        start = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][idx - start]

    @property
    def cummulative_sizes(self) -> list[int]:
        """The misspelt name of ``cumulative_sizes`` that old code uses.

        It warns.
        """
        warnings.warn(
            "cummulative_sizes attribute is renamed to cumulative_sizes", DeprecationWarning, stacklevel=2
        )
        return self.cumulative_sizes


class ChainDataset(IterableDataset[Any]):
    """The given streams one after the other.

    Raises:
        TypeError: on iteration or ``len()``, a part that is no IterableDataset.

    Args:
        datasets: of streams, in order.

    >>> class Count(torch.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return iter(range(2))
    >>> list(torch.utils.data.ChainDataset([Count(), Count()]))
    [0, 1, 0, 1]
    """

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = datasets

    def _streams(self) -> Iterator[IterableDataset]:
        for d in self.datasets:
            if not isinstance(d, IterableDataset):
                raise AssertionError(f"ChainDataset only supports IterableDataset, got {type(d).__name__}")
            yield d

    def __iter__(self) -> Iterator[Any]:
        for d in self._streams():
            yield from d

    def __len__(self) -> int:
        streams: Iterator[Any] = self._streams()
        return sum(len(d) for d in streams)


class Subset(Dataset[T_co]):
    """The samples of ``dataset`` at ``indices``, in that order.

    Args:
        dataset: map style.
        indices: positions in it, in any order; one may come twice.

    >>> torch.utils.data.Subset(range(5), [0, 3])[1]
    3
    """

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, idx: Any) -> Any:
        if isinstance(idx, list):
            return self.dataset[[self.indices[i] for i in idx]]
        return self.dataset[self.indices[idx]]

    def __getitems__(self, indices: list[int]) -> list:
        picked = [self.indices[i] for i in indices]
        many = getattr(self.dataset, "__getitems__", None)
        return many(picked) if callable(many) else [self.dataset[i] for i in picked]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(
    dataset: Dataset[Any], lengths: Sequence[int | float], generator: Generator | None = None
) -> list[Subset[Any]]:
    """Splits ``dataset`` at random into parts that do not overlap.

    Args:
        lengths: sample counts that add up to the dataset's, or shares that add up to 1 (what rounding down
            leaves over goes one each to the first parts in turn).
        generator: None uses the default generator.

    Raises:
        ValueError: the counts or shares do not add up.

    Args:
        dataset: map style.

    >>> [len(part) for part in torch.utils.data.random_split(range(5), [3, 2])]
    [3, 2]
    """
    total = len(dataset)  # type: ignore[arg-type]
    counts = list(lengths)
    if math.isclose(sum(counts), 1) and sum(counts) <= 1:
        counts = _counts_of_shares(counts, total)
    if sum(counts) != total:
        raise ValueError(
            "Sum of input lengths does not equal the length of the input dataset! "
            f"Got lengths {list(lengths)} for {total} samples"
        )
    order = wt.randperm(total, generator=generator).tolist()
    ends = itertools.accumulate(counts)
    return [Subset(dataset, order[int(end) - int(count) : int(end)]) for end, count in zip(ends, counts)]


def _counts_of_shares(shares: Sequence[float], total: int) -> list[int | float]:
    for i, share in enumerate(shares):
        if not 0 <= share <= 1:
            raise ValueError(f"Fraction at index {i} is not between 0 and 1")
    counts = [math.floor(total * share) for share in shares]
    for i in range(total - sum(counts)):
        counts[i % len(counts)] += 1
    for i, count in enumerate(counts):
        if count == 0:
            warnings.warn(
                f"Length of split at index {i} is 0. This might result in an empty dataset.", stacklevel=3
            )
    return list(counts)
