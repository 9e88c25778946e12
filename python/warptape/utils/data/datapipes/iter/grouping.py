"""Pipes that make batches of samples, and samples of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..datapipe import DataChunk, IterDataPipe, functional_datapipe
from ..utils.common import _check_unpickable_fn, length_of


def batches_of(length: int, batch_size: int, drop_last: bool) -> int:
    """How many batches so many samples make."""
    return length // batch_size if drop_last else -(-length // batch_size)


@functional_datapipe("batch")
class BatcherIterDataPipe(IterDataPipe[DataChunk]):
    """Lists of `batch_size` samples; the last one may be shorter unless `drop_last`.

    Args:
        wrapper_class: called with the list of each batch.

    Raises:
        AssertionError: `batch_size` is not positive.
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

    def __iter__(self) -> Iterator[Any]:
        batch: list[Any] = []
        for x in self.datapipe:
            batch.append(x)
            if len(batch) == self.batch_size:
                yield self.wrapper_class(batch)
                batch = []
        if batch and not self.drop_last:
            yield self.wrapper_class(batch)

    def __len__(self) -> int:
        return batches_of(length_of(self.datapipe, self), self.batch_size, self.drop_last)


@functional_datapipe("unbatch")
class UnBatcherIterDataPipe(IterDataPipe[Any]):
    """The samples in lists, `unbatch_level` levels deep; -1 for all levels.

    Raises:
        ValueError: while iterating: a level below -1.
        IndexError: while iterating: lists are not that deep.
    """

    def __init__(self, datapipe: Any, unbatch_level: int = 1) -> None:
        self.datapipe, self.unbatch_level = datapipe, unbatch_level

    def __iter__(self) -> Iterator[Any]:
        if self.unbatch_level < -1:
            raise ValueError("unbatch_level must be -1 or >= 0")
        for element in self.datapipe:
            yield from self._dive(element, self.unbatch_level)

    def _dive(self, element: Any, level: int) -> Iterator[Any]:
        is_list = isinstance(element, list)
        if level == 0 or (level == -1 and not is_list):
            yield element
        elif not is_list:
            raise IndexError(f"unbatch_level {self.unbatch_level} exceeds the depth of the DataPipe")
        else:
            for item in element:
                yield from self._dive(item, level if level == -1 else level - 1)


@functional_datapipe("groupby")
class GrouperIterDataPipe(IterDataPipe[DataChunk]):
    """Lists of samples of the same `group_key_fn(sample)`.

    Args:
        keep_key: give pairs of key and list.
        buffer_size: how many samples may wait; then the largest group is given as it is.
        group_size: give a group as soon as it has so many; None at the end.
        guaranteed_group_size: the least number in a group that a full buffer gives; `group_size` unless told.
        drop_remaining: a full buffer drops a largest group of fewer than that, instead of raising.

    Raises:
        AssertionError: sizes that contradict each other.
        RuntimeError: while iterating: the largest group of a full buffer is too small.
    """

    def __init__(
        self,
        datapipe: Any,
        group_key_fn: Callable[[Any], Any],
        *,
        keep_key: bool = False,
        buffer_size: int = 10000,
        group_size: int | None = None,
        guaranteed_group_size: int | None = None,
        drop_remaining: bool = False,
    ) -> None:
        _check_unpickable_fn(group_key_fn)
        least = group_size
        if group_size is not None and not 0 < group_size <= buffer_size:
            raise AssertionError("group_size must be > 0 and <= buffer_size")
        if guaranteed_group_size is not None:
            if group_size is None or not 0 < guaranteed_group_size <= group_size:
                raise AssertionError(
                    "guaranteed_group_size must be > 0 and <= group_size and group_size must be set"
                )
            least = guaranteed_group_size
        self.datapipe, self.group_key_fn, self.keep_key = datapipe, group_key_fn, keep_key
        self.max_buffer_size, self.group_size = buffer_size, group_size
        self.guaranteed_group_size, self.drop_remaining = least, drop_remaining

    def __iter__(self) -> Iterator[Any]:
        groups: dict[Any, list[Any]] = {}
        waiting = 0
        for x in self.datapipe:
            key = self.group_key_fn(x)
            groups.setdefault(key, []).append(x)
            waiting += 1
            if len(groups[key]) == self.group_size:
                waiting -= len(groups[key])
                yield self._given(key, groups.pop(key))
            if waiting == self.max_buffer_size:
                largest = max(groups, key=lambda k: len(groups[k]))
                waiting -= len(groups[largest])
                if self._suffices(groups[largest]):
                    yield self._given(largest, groups.pop(largest))
                else:
                    del groups[largest]
        for key, group in groups.items():
            yield self._given(key, group)

    def _suffices(self, group: list[Any]) -> bool:
        """Whether a group may leave the full buffer; else it is dropped. Raises RuntimeError."""
        if self.guaranteed_group_size is None or len(group) >= self.guaranteed_group_size:
            return True
        if not self.drop_remaining:
            raise RuntimeError(
                f"Failed to group items: {len(group)} of {group} are fewer than "
                f"guaranteed_group_size={self.guaranteed_group_size}; raise buffer_size"
            )
        return False

    def _given(self, key: Any, group: list[Any]) -> Any:
        chunk = DataChunk(group)
        return (key, chunk) if self.keep_key else chunk
