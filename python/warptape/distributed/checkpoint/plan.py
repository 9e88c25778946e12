"""What ranks tell each other before a byte is written or read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...utils.safetensors import KIND_OF, itemsize
from .. import state as _state
from ..objects import all_gather_object
from .layout import CheckpointException
from .slices import Slice, fault_of_tiling
from .state import Collected, encode_object

if TYPE_CHECKING:
    from warptape.distributed.state import Group


def world_of(group: Group, no_dist: bool = False) -> tuple[int, int]:
    """This rank and the number of ranks; (0, 1) without a job, or where it is not to be asked.

    Args:
        group: the ranks; all if None.
        no_dist: whether this rank acts alone.
    """
    if no_dist or _state.peek_state() is None:
        return 0, 1
    pg = _state.resolve(group)
    return pg.rank(), pg.size()


def exchange(value: object, group: Group, world: int) -> list[Any]:
    """The JSON values of all ranks.

    Args:
        value: what JSON can hold.
        group: the ranks; all if None.
        world: their number.
    """
    if world == 1:
        return [value]
    out: list[Any] = [None] * world
    all_gather_object(out, json.dumps(value), group)
    return [json.loads(text) for text in out]


def agree(what: str, faults: list[str | None], cause: BaseException | None = None) -> None:
    """Raises on every rank what any rank found.

    Args:
        what: names the operation in the error.
        faults: for each rank None or a text.
        cause: this rank's own error.

    Raises: CheckpointException where there is a fault.
    """
    failures = {rank: text for rank, text in enumerate(faults) if text}
    if not failures:
        return
    ranks_of: dict[str, list[str]] = {}
    for rank, text in failures.items():
        ranks_of.setdefault(text, []).append(str(rank))
    said = [
        text if len(faults) == 1 else f"rank {', '.join(ranks)}: {text}" for text, ranks in ranks_of.items()
    ]
    raise CheckpointException(f"{what}: {'; '.join(said)}", failures) from cause


def describe(error: BaseException) -> str:
    """An error of one rank, for the others.

    Args:
        error: of any class.
    """
    return str(error) if isinstance(error, CheckpointException) else f"{type(error).__name__}: {error}"


@dataclass
class WritePlan:
    """What all ranks hold together, and which rank writes each slice of it.

    Args:
        tensors, objects: entries of the manifest by name.
        aliases: further names of shared tensors.
        containers: kinds of containers by path.
        owners: which rank writes which slice.
    """

    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    containers: dict[str, str] = field(default_factory=dict)
    owners: dict[str, dict[Slice, int]] = field(default_factory=dict)


def offer(collected: Collected) -> dict[str, Any]:
    """What a rank tells the others of what it holds.

    Args:
        collected: what this rank holds.
    """
    tensors = {
        name: [KIND_OF[h.tensor.dtype], h.shape, h.slices, h.any_holder, h.checksum]
        for name, h in collected.tensors.items()
    }
    objects = {name: encode_object(value) for name, value in collected.objects.items()}
    containers = collected.containers
    return {"tensors": tensors, "objects": objects, "aliases": collected.aliases, "containers": containers}


def merge(offers: list[dict[str, Any]]) -> WritePlan:
    """The plan, the same on every rank, for it is computed from the same offers. Raises CheckpointException
    where ranks contradict each other or do not hold all of a tensor."""
    plan, seen = WritePlan(), dict[str, tuple[Any, ...]]()
    holders: dict[str, dict[Slice, list[int]]] = {}
    for rank, offered in enumerate(offers):
        for part in ("objects", "aliases", "containers"):
            for name, value in offered[part].items():
                if getattr(plan, part).setdefault(name, value) != value:
                    raise CheckpointException(
                        f"{name} is not the same on rank {rank} as on those before it; wrap it in PerRank if "
                        "each rank has its own"
                    )
        for name, (kind, shape, slices, any_holder, checksum) in offered["tensors"].items():
            said = (kind, tuple(shape), any_holder, checksum)
            if seen.setdefault(name, said) != said:
                raise CheckpointException(
                    f"tensor {name} is not the same on rank {rank} as on those before it; give the model, "
                    "which knows how it is split, instead of its tensors, or wrap it in PerRank"
                )
            at = holders.setdefault(name, {})
            for start, size in slices:
                if math.prod(size):
                    at.setdefault((tuple(start), tuple(size)), []).append(rank)
    for name in plan.objects.keys() & (holders.keys() | plan.containers.keys()):
        raise CheckpointException(f"{name} is not the same kind of thing on all ranks")
    load = [0] * len(offers)  # bytes
    for name, slices_of in holders.items():
        kind, shape, any_holder, _ = seen[name]
        fault = fault_of_tiling(shape, list(slices_of))
        if fault:
            raise CheckpointException(f"tensor {name}: {fault}; the ranks that save do not hold all of it")
        plan.tensors[name] = {"dtype": kind, "shape": shape}
        owners = plan.owners[name] = {}
        for where, ranks in slices_of.items():
            owners[where] = min(ranks, key=lambda r: (load[r], r)) if any_holder else ranks[0]
            load[owners[where]] += math.prod(where[1]) * itemsize(kind)
    return plan
