"""The pipes that a data pipe is made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from .datapipes.datapipe import IterDataPipe, MapDataPipe

__all__ = ["traverse_dps"]

DataPipe = IterDataPipe[Any] | MapDataPipe[Any]
DataPipeGraph = dict[int, tuple[DataPipe, "DataPipeGraph"]]
_Collection = list | tuple | set | frozenset | deque


def _pipes_in(value: Any, seen: set[int]) -> Iterator[DataPipe]:
    """Pipes in a value or in the collections that it is made of; each once."""
    if isinstance(value, IterDataPipe | MapDataPipe | dict | _Collection):
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, IterDataPipe | MapDataPipe):
            yield value
            return
        for part in value.values() if isinstance(value, dict) else value:
            yield from _pipes_in(part, seen)


def traverse_dps(datapipe: DataPipe) -> DataPipeGraph:
    """The graph of pipes that end in `datapipe`: its id -> (the pipe, the graph of those that it reads).

    Those are looked for in a pipe's attributes, and in lists, tuples, sets and dicts there.

    Raises:
        RuntimeError: it is no pipe.
    """
    if not isinstance(datapipe, IterDataPipe | MapDataPipe):
        raise RuntimeError(f"Expected `IterDataPipe` or `MapDataPipe`, but {type(datapipe)} is found")
    return _graph(datapipe, frozenset())


def _graph(pipe: DataPipe, above: frozenset[int]) -> DataPipeGraph:
    above |= {id(pipe)}
    below: DataPipeGraph = {}
    for child in _pipes_in(list(vars(pipe).values()), set(above)):
        below.update(_graph(child, above))
    return {id(pipe): (pipe, below)}
