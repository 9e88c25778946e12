"""Pipes that give a sample by its index."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any

from ..datapipe import DataChunk, MapDataPipe, functional_datapipe
from ..iter.combinatorics import Shuffled
from ..iter.grouping import batches_of
from ..utils.common import _check_unpickable_fn, length_of


class SequenceWrapperMapDataPipe(MapDataPipe[Any]):
    """The samples of a sequence or a mapping, of a copy of it unless `deepcopy` is False."""

    def __init__(self, sequence: Sequence[Any] | Mapping[Any, Any], deepcopy: bool = True) -> None:
        self.sequence = sequence
        if deepcopy:
            try:
                self.sequence = copy.deepcopy(sequence)
            except TypeError:
                warnings.warn(
                    "The input sequence can not be deepcopied, please be aware of in-place modification "
                    "would affect source data",
                    stacklevel=2,
                )

    def __getitem__(self, index: Any) -> Any:
        return self.sequence[index]

    def __len__(self) -> int:
        return len(self.sequence)


def default_fn(data: Any) -> Any:
    """The sample itself."""
    return data


@functional_datapipe("map")
class MapperMapDataPipe(MapDataPipe[Any]):
    """Gives `fn(sample)`."""

    def __init__(self, datapipe: Any, fn: Callable[[Any], Any] = default_fn) -> None:
        _check_unpickable_fn(fn)
        self.datapipe, self.fn = datapipe, fn

    def __getitem__(self, index: Any) -> Any:
        return self.fn(self.datapipe[index])

    def __len__(self) -> int:
        return length_of(self.datapipe, self)


def _check(datapipes: Sequence[Any]) -> None:
    if not datapipes:
        raise ValueError("Expected at least one DataPipe, but got nothing")
    if not all(isinstance(pipe, MapDataPipe) for pipe in datapipes):
        raise TypeError("Expected all inputs to be `MapDataPipe`")
    if not all(isinstance(pipe, Sized) for pipe in datapipes):
        raise TypeError("Expected all inputs to be `Sized`")


@functional_datapipe("concat")
class ConcaterMapDataPipe(MapDataPipe[Any]):
    """The given pipes one after the other, by number.

    Raises:
        ValueError: none given.
        TypeError: one of them is no MapDataPipe or has no length.
        IndexError: a number that is too high.
    """

    def __init__(self, *datapipes: Any) -> None:
        _check(datapipes)
        self.datapipes = datapipes

    def __getitem__(self, index: int) -> Any:
        at = index
        for pipe in self.datapipes:
            if at < len(pipe):
                return pipe[at]
            at -= len(pipe)
        raise IndexError(f"Index {index} is out of range.")

    def __len__(self) -> int:
        return sum(map(len, self.datapipes))


@functional_datapipe("zip")
class ZipperMapDataPipe(MapDataPipe[tuple]):
    """Tuples of the sample of each pipe; as long as the shortest one.

    Raises:
        ValueError, TypeError: as of `concat()`.
        IndexError: a number that is too high for one of them.
    """

    def __init__(self, *datapipes: Any) -> None:
        _check(datapipes)
        self.datapipes = datapipes

    def __getitem__(self, index: Any) -> tuple:
        out = []
        for pipe in self.datapipes:
            try:
                out.append(pipe[index])
            except IndexError as error:
                raise IndexError(
                    f"Index {index} is out of range for one of the input MapDataPipes {pipe}."
                ) from error
        return tuple(out)

    def __len__(self) -> int:
        return min(map(len, self.datapipes))


@functional_datapipe("batch")
class BatcherMapDataPipe(MapDataPipe[DataChunk]):
    """Lists of `batch_size` samples; the last one may be shorter unless `drop_last`.

    Raises:
        AssertionError: `batch_size` is not positive.
        IndexError: a number that is too high.
    """

    def __init__(
        self,
        datapipe: Any,
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[Any]], Any] = DataChunk,
    ) -> None:
        if batch_size <= 0:
            raise AssertionError("Batch size is required to be larger than 0!")
        self.datapipe, self.batch_size, self.drop_last = datapipe, batch_size, drop_last
        self.wrapper_class = wrapper_class

    def __getitem__(self, index: int) -> Any:
        batch: list[Any] = []
        for i in range(index * self.batch_size, (index + 1) * self.batch_size):
            try:
                batch.append(self.datapipe[i])
            except IndexError as error:
                if self.drop_last or not batch:
                    raise IndexError(f"Index {index} is out of bound.") from error
                break
        return self.wrapper_class(batch)

    def __len__(self) -> int:
        return batches_of(length_of(self.datapipe, self), self.batch_size, self.drop_last)


class ShufflerIterDataPipe(Shuffled):
    """A stream of all samples in random order, of those at `indices` if given.

    Seeds are as of the `shuffle()` of streams.
    """

    def __init__(self, datapipe: Any, *, indices: list[Any] | None = None) -> None:
        self.datapipe = datapipe
        self.indices = list(range(len(datapipe))) if indices is None else indices
        self._rng = random.Random()
        self._shuffled_indices: list[Any] = self.indices

    def __iter__(self) -> Iterator[Any]:
        if not self._enabled:
            for index in self.indices:
                yield self.datapipe[index]
            return
        while self._shuffled_indices:
            yield self.datapipe[self._shuffled_indices.pop()]

    def reset(self) -> None:
        """Draws an order."""
        if self._enabled:
            self._seed_order()
            self._shuffled_indices = self._rng.sample(self.indices, len(self.indices))

    def __len__(self) -> int:
        return length_of(self.datapipe, self)


MapDataPipe.register_datapipe_as_function("shuffle", ShufflerIterDataPipe)
