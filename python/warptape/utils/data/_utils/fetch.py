"""From one entry of the index sampler to one batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["fetcher"]


def fetcher(
    dataset: Any,
    stream: bool,
    batched: bool,
    collate: Callable,
    drop_last: bool,
    iterator: Iterator | None = None,
) -> Callable:
    """The function that fetches batches; it raises StopIteration at the end of a stream.

    `iterator` is of a stream, if it has begun.
    """
    if stream:
        samples = iter(dataset) if iterator is None else iterator
        return functools.partial(_next_of_stream, samples, collate, batched, drop_last)
    if not batched:
        return lambda index: collate(dataset[index])
    many = getattr(dataset, "__getitems__", None)
    if callable(many):
        return lambda indices: collate(many(indices))
    return lambda indices: collate([dataset[i] for i in indices])


class _Fetcher:
    """`fetch(indices)` gives what one entry of the index sampler asks for."""

    def __init__(self, *options: Any) -> None:
        self.fetch = fetcher(*options)


class _DatasetKind:
    """PyTorch's two kinds of datasets, and what fetches from them."""

    Map, Iterable = 0, 1

    @staticmethod
    def create_fetcher(
        kind: int, dataset: Any, auto_collation: bool, collate_fn: Callable, drop_last: bool
    ) -> _Fetcher:
        """Of a dataset with indices or of a stream."""
        return _Fetcher(dataset, kind == _DatasetKind.Iterable, auto_collation, collate_fn, drop_last)


def _next_of_stream(stream: Iterator, collate: Callable, batched: bool, drop_last: bool, wanted: Any) -> Any:
    if not batched:
        return collate(next(stream))
    samples = [sample for _, sample in zip(wanted, stream)]
    if not samples or (drop_last and len(samples) < len(wanted)):
        raise StopIteration
    return collate(samples)
