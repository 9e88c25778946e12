"""Pipes that are made of several ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..datapipe import IterDataPipe, functional_datapipe
from ..utils.common import length_of


@functional_datapipe("concat")
class ConcaterIterDataPipe(IterDataPipe[Any]):
    """The given pipes one after the other.

    Raises:
        ValueError: none given.
        TypeError: one of them is no IterDataPipe.
    """

    def __init__(self, *datapipes: IterDataPipe[Any]) -> None:
        if not datapipes:
            raise ValueError("Expected at least one DataPipe, but got nothing")
        if not all(isinstance(pipe, IterDataPipe) for pipe in datapipes):
            raise TypeError("Expected all inputs to be `IterDataPipe`")
        self.datapipes = datapipes

    def __iter__(self) -> Iterator[Any]:
        for pipe in self.datapipes:
            yield from pipe

    def __len__(self) -> int:
        return sum(length_of(pipe, self) for pipe in self.datapipes)


@functional_datapipe("mux")
class MultiplexerIterDataPipe(IterDataPipe[Any]):
    """One sample of each pipe in turn, until one has no more: what the others gave in that turn is lost."""

    def __init__(self, *datapipes: Any) -> None:
        self.datapipes = datapipes

    def __iter__(self) -> Iterator[Any]:
        for turn in zip(*map(iter, self.datapipes)):
            yield from turn

    def __len__(self) -> int:
        return min(length_of(pipe, self) for pipe in self.datapipes) * len(self.datapipes)


@functional_datapipe("zip")
class ZipperIterDataPipe(IterDataPipe[tuple]):
    """Tuples of one sample of each pipe, until one has no more.

    Raises:
        TypeError: one of them is no IterDataPipe.
    """

    def __init__(self, *datapipes: IterDataPipe[Any]) -> None:
        if not all(isinstance(pipe, IterDataPipe) for pipe in datapipes):
            raise TypeError("All inputs are required to be `IterDataPipe` for `ZipIterDataPipe`.")
        self.datapipes = datapipes

    def __iter__(self) -> Iterator[tuple]:
        yield from zip(*map(iter, self.datapipes))

    def __len__(self) -> int:
        return min(length_of(pipe, self) for pipe in self.datapipes)
