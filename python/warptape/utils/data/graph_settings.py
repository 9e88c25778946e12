"""What a DataLoader sets in all pipes of a graph: seeds, shuffling, shards."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import warptape

from .datapipes.iter.sharding import SHARDING_PRIORITIES
from .graph import DataPipe, DataPipeGraph, traverse_dps

__all__ = ["apply_random_seed", "apply_sharding", "apply_shuffle_settings", "get_all_graph_pipes"]


def get_all_graph_pipes(graph: DataPipeGraph) -> list[DataPipe]:
    """Each pipe of a graph once, the last one of the chain first."""
    found: dict[int, DataPipe] = {}

    def collect(part: DataPipeGraph) -> None:
        for number, (pipe, below) in part.items():
            if number not in found:
                found[number] = pipe
                collect(below)

    collect(graph)
    return list(found.values())


def _has(pipe: Any, *methods: str) -> bool:
    return all(inspect.ismethod(getattr(pipe, name, None)) for name in methods)


def apply_sharding(
    datapipe: DataPipe,
    num_of_instances: int,
    instance_id: int,
    sharding_group: SHARDING_PRIORITIES = SHARDING_PRIORITIES.DEFAULT,
) -> DataPipe:
    """Makes `datapipe` number `instance_id` of `num_of_instances`, at each pipe with `apply_sharding()`.

    Raises:
        RuntimeError: two of them on the way of a sample, which would lose some.
    """

    def visit(graph: DataPipeGraph, before: Any) -> None:
        for pipe, below in graph.values():
            sharded: Any = pipe if _has(pipe, "apply_sharding") else None
            if sharded is not None:
                if before is not None:
                    raise RuntimeError(
                        "Sharding twice on a single pipeline is likely unintended and will cause data loss. "
                        f"Sharding already applied to {before} while trying to apply to {pipe}"
                    )
                if len(inspect.signature(sharded.apply_sharding).parameters) < 3:
                    sharded.apply_sharding(num_of_instances, instance_id)
                else:
                    sharded.apply_sharding(num_of_instances, instance_id, sharding_group=sharding_group)
            visit(below, sharded or before)

    visit(traverse_dps(datapipe), None)
    return datapipe


def apply_shuffle_settings(datapipe: DataPipe, shuffle: bool | None = None) -> DataPipe:
    """Switches every `shuffle()` on or off; None leaves them. One is added where True finds none."""
    if shuffle is None:
        return datapipe
    pipes: list[Any] = get_all_graph_pipes(traverse_dps(datapipe))
    shufflers = [pipe for pipe in pipes if _has(pipe, "set_shuffle", "set_seed")]
    if shuffle and not shufflers:
        warnings.warn(
            "`shuffle=True` was set, but the datapipe does not contain a `Shuffler`. Adding one at the end. "
            "Be aware that the default buffer size might not be sufficient for your task.",
            stacklevel=2,
        )
        datapipe = datapipe.shuffle()
        shufflers = [datapipe]
    for pipe in shufflers:
        pipe.set_shuffle(shuffle)
    return datapipe


def apply_random_seed(datapipe: DataPipe, rng: warptape.Generator) -> DataPipe:
    """Gives every pipe with `set_seed()` a seed from `rng`."""
    pipes: list[Any] = get_all_graph_pipes(traverse_dps(datapipe))
    for pipe in pipes:
        if _has(pipe, "set_seed"):
            pipe.set_seed(int(warptape.empty((), dtype=warptape.int64).random_(generator=rng).item()))
    return datapipe
