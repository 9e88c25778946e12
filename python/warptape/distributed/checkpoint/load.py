"""load(): each rank reads the slices that it needs, once all that is read has proved to be what was saved."""

from __future__ import annotations

import json
import math
import mmap
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from warptape import core as wt

from ... import _C
from ...core import Tensor
from ...utils.safetensors import KINDS, itemsize
from .layout import (
    BLOCK,
    CHECKSUM,
    CHECKSUMS,
    LARGEST_MANIFEST,
    MANIFEST,
    CheckpointException,
    decode_manifest,
)
from .plan import agree, describe, exchange, world_of
from .save import aside, deprecated, is_checkpoint
from .slices import Slice, overlap, within
from .state import Wanted

if TYPE_CHECKING:
    from warptape.distributed.state import Group

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in a file's place is not waited for
Part = tuple[str, dict[str, Any], Slice, Tensor]  # tensor, its piece, what of it is read, where to


def read_bytes(path: Path, most: int) -> bytes:
    """A file's bytes. Raises CheckpointException when there are more than `most`.

    Args:
        path: a file, not a link.
        most: bytes.
    """
    fd = os.open(path, _READ | os.O_NOFOLLOW)
    with open(fd, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise CheckpointException(f"{path}: more than {most} bytes; no save wrote it")
    return data


def find(checkpoint_id: str | os.PathLike[str]) -> Path:
    """The folder of a checkpoint, also if a kill left it aside.

    Args:
        checkpoint_id: a path.

    Raises: CheckpointException where there is no checkpoint.
    """
    path = Path(os.path.abspath(checkpoint_id))
    if not is_checkpoint(path):
        if is_checkpoint(aside(path)):
            return aside(path)
        if (path / ".metadata").is_file():
            raise CheckpointException(
                f"{path}: it has PyTorch's format (.metadata, .distcp), not read here; have PyTorch "
                "make one file of it by dcp_to_torch_save, and here a checkpoint of that by torch_save_to_dcp"
            )
        raise CheckpointException(f"{path}: no checkpoint is there")
    return path


def read_manifest(path: Path) -> dict[str, Any]:
    """The checked manifest of a folder.

    Args:
        path: of the folder.

    Raises: CheckpointException for a manifest that no save wrote.
    """
    return decode_manifest(read_bytes(path / MANIFEST, LARGEST_MANIFEST), str(path / MANIFEST))


class Shards:
    """The shards of a checkpoint, mapped, with the checksums of their headers checked.

    Raises: CheckpointException, and OSError for a file that is not there.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], names: set[str], follow: bool = False) -> None:
        self.maps: dict[str, mmap.mmap] = {}
        self.checksum = CHECKSUMS[manifest.get("checksum", CHECKSUM)]
        for name in sorted(names):
            said = manifest["files"][name]
            fd = os.open(folder / name, _READ | (0 if follow else os.O_NOFOLLOW))
            try:
                size = os.fstat(fd).st_size
                if size != said["bytes"]:
                    inside = sorted(
                        tensor
                        for tensor, entry in manifest["tensors"].items()
                        for p in entry["pieces"]
                        if p["file"] == name and p["at"] + math.prod(p["box"][1]) > size
                    )
                    of = f", too few for {', '.join(inside[:8])}" if inside else ""
                    raise CheckpointException(f"{name} has {size} bytes, not {said['bytes']}{of}")
                # Private: NumPy and the runtime take only memory that may be written.
                self.maps[name] = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)
            finally:
                os.close(fd)
            if "checksum" in said and self.checksum(self.maps[name][: said["header"]]) != said["checksum"]:
                raise CheckpointException(f"the header of {name} is damaged: its checksum is another")

    def values(self, kind: str, piece: dict[str, Any], part: Slice) -> np.ndarray:
        """A part of a piece, where it is in the file.

        Args:
            kind: the dtype's name.
            piece: its entry of the manifest.
            part: start and size of what is wanted, in the whole tensor.
        """
        shape = piece["box"][1]
        there = shape[::-1] if piece.get("transposed") else shape
        stored = np.ndarray(there, KINDS[kind][1], self.maps[piece["file"]], piece["at"])
        return (stored.T if there is not shape else stored)[within(part, piece["box"])]

    def fault_of_block(self, name: str, piece: dict[str, Any], i: int, length: int) -> str | None:
        """Whether a block of a piece is what was saved.

        Args:
            name: of the tensor.
            piece: its entry of the manifest.
            i: the block's number.
            length: bytes of the piece.

        Returns: None, or what is wrong.
        """
        begin = piece["at"] + i * BLOCK
        with memoryview(self.maps[piece["file"]]) as data:
            checksum = self.checksum(data[begin : min(begin + BLOCK, piece["at"] + length)])
            if checksum == piece["checksums"][i]:
                return None
        return f"tensor {name} is damaged: in {piece['file']}, bytes {begin} and on have another checksum"


def parts_of(manifest: dict[str, Any], tensors: list[tuple[str, Any]]) -> Iterator[Part]:
    """What of which pieces goes where, on this rank.

    Args:
        manifest: of the checkpoint.
        tensors: names, and how this rank holds each.
    """
    for name, into in tensors:
        for i, where in enumerate(into.slices):
            target = into.local(i).detach()
            for piece in manifest["tensors"][name]["pieces"]:
                common = overlap(where, piece["box"])
                if common is not None:
                    yield name, piece, common, target[within(common, where)] if common != where else target


def _blocks(manifest: dict[str, Any], parts: list[Part]) -> dict[tuple[str, int, int], tuple[Any, ...]]:
    """Of which blocks the checksums must be known, each once."""
    out = {}
    for name, piece, (start, size), _ in parts:
        box, width = piece["box"], itemsize(manifest["tensors"][name]["dtype"])
        length = math.prod(box[1]) * width
        row = math.prod(box[1][1:]) * width  # the rows of dim 0 lie one after the other
        first = (start[0] - box[0][0]) * row if start else 0
        last = first + (size[0] * row if start else width)
        for i in range(first // BLOCK, -(-last // BLOCK)):
            out[piece["file"], piece["at"], i] = (name, piece, i, length)
    return out


def _verify(shards: Shards, blocks: list[tuple[Any, ...]]) -> None:
    """Raises CheckpointException that names the damaged tensors."""
    tasks: list[list[tuple[Any, ...]]] = [[]]  # each of about a block's bytes
    size = 0
    for block in blocks:
        _, _, i, length = block
        size += min(BLOCK, length - i * BLOCK)
        if size > BLOCK and tasks[-1]:
            tasks.append([])
            size = min(BLOCK, length - i * BLOCK)
        tasks[-1].append(block)

    def check(task: list[tuple[Any, ...]]) -> list[str]:
        return [fault for block in task if (fault := shards.fault_of_block(*block))]

    with ThreadPoolExecutor(min(8, len(tasks), len(os.sched_getaffinity(0)))) as pool:
        faults = [fault for found in pool.map(check, tasks) for fault in found]
    if faults:
        more = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise CheckpointException("; ".join(faults[:8]) + more)


def _copy(shards: Shards, kind: str, part: Part) -> None:
    _, piece, where, target = part
    values = np.require(shards.values(kind, piece, where), requirements="A")
    steps = tuple(step // values.itemsize for step in values.strides)
    there = values.ctypes.data, KINDS[kind][0], values.shape, steps, wt.device("cpu")
    target.copy_(_C._from_memory(values, *there))


def copy_all(shards: Shards, manifest: dict[str, Any], parts: list[Part]) -> None:
    """Brings the values to where they go.

    Args:
        shards: the open files.
        manifest: of the checkpoint.
        parts: as parts_of gives them.
    """
    with wt.no_grad():
        for part in parts:
            _copy(shards, manifest["tensors"][part[0]]["dtype"], part)


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_reader: Any = None,
    planner: object = None,
    process_group: Group = None,
    no_dist: bool = False,
) -> None:
    """Reads a checkpoint into the models, optimizers and other things of a dict, in place; plain data in the
    dict is replaced. Any layout, on any number of ranks, reads what any other saved. Collective.

    Every name of a model and its optimizer must be there, and no other; of what lies under names that
    `state_dict` lacks, nothing is read.

    Raises: CheckpointException on every rank, with nothing changed on any, for another model's checkpoint, a
    damaged or truncated file (naming the tensor), and one that could not have been written by a save.

    A `storage_reader`, FileSystemReader(path) or HuggingFaceStorageReader(path), may stand in place of
    checkpoint_id. A planner DefaultLoadPlanner(allow_partial_load=True) leaves alone what is not there. With
    `no_dist` each process that calls loads by itself and talks to no other.
    """
    if storage_reader is not None:
        checkpoint_id = storage_reader.path if checkpoint_id is None else checkpoint_id
    if checkpoint_id is None:
        raise ValueError("load: expected checkpoint_id or storage_reader")
    partial = getattr(planner, "allow_partial_load", False)
    if hasattr(storage_reader, "read_state"):
        storage_reader.read_state(state_dict, checkpoint_id, process_group, no_dist, partial)
        return
    rank, world = world_of(process_group, no_dist)
    shards: Shards | None = None
    what, cause, fault, seen = f"load from {checkpoint_id}", None, None, None
    try:
        folder = find(checkpoint_id)
        manifest = read_manifest(folder)
        wanted = Wanted(state_dict, manifest, rank, world, partial)
        seen = [zlib.crc32(json.dumps(manifest["files"]).encode()), sorted(wanted.known), wanted.prefixes]
    except Exception as error:
        fault, cause = describe(error), error
    reports = exchange([fault, seen], process_group, world)
    agree(what, [each[0] for each in reports], cause)
    _all_known(what, manifest, [each[1] for each in reports])
    try:
        parts = list(parts_of(manifest, wanted.tensors))
        shards = Shards(folder, manifest, {piece["file"] for _, piece, _, _ in parts})
        _verify(shards, list(_blocks(manifest, parts).values()))
    except Exception as error:
        fault, cause = describe(error), error
    agree(what, exchange(fault, process_group, world), cause)
    assert shards is not None
    try:
        copy_all(shards, manifest, parts)
        for give in wanted.finish:
            give()
    except Exception as error:
        fault, cause = describe(error), error
    agree(what, exchange(fault, process_group, world), cause)  # and none goes on before all have loaded


def load_state_dict(
    state_dict: dict[str, Any],
    storage_reader: Any,
    process_group: Group = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    planner: object = None,
) -> None:
    """`load(state_dict, storage_reader=..)`, deprecated as in PyTorch; no rank is the coordinator.

    Args:
        state_dict: what is loaded into.
        storage_reader: names the folder.
        process_group: the ranks that load.
        coordinator_rank, planner: without effect.
        no_dist: whether this rank loads alone.
    """
    deprecated("load_state_dict", "load")
    load(
        state_dict,
        storage_reader=storage_reader,
        process_group=process_group,
        no_dist=no_dist,
        planner=planner,
    )


def _all_known(what: str, manifest: dict[str, Any], reports: list[list[Any]]) -> None:
    """Raises on every rank for names that no rank asks for, or different checkpoints."""
    if any(each[0] != reports[0][0] for each in reports):
        raise CheckpointException(f"{what}: the ranks see different checkpoints; wait until a save is over")
    known: set[str] = set()
    prefixes: set[str] = set()
    for _, names, under in reports:
        known.update(names)
        prefixes.update(under)
    there = [*manifest["tensors"], *manifest["aliases"], *manifest["objects"]]
    extra = [name for name in there if name not in known and name.startswith(tuple(prefixes))]
    if extra:
        more = f" and {len(extra) - 8} more" if len(extra) > 8 else ""
        raise CheckpointException(f"{what}: nothing here is called {', '.join(extra[:8])}{more}")


def metadata(checkpoint_id: str | os.PathLike[str]) -> Any:
    """What save() was given as `metadata`.

    Args:
        checkpoint_id: a path.
    """
    return read_manifest(find(checkpoint_id))["metadata"]


def verify(checkpoint_id: str | os.PathLike[str]) -> int:
    """Reads all of a checkpoint; returns the number of its tensors. Raises CheckpointException.

    Args:
        checkpoint_id: a path.
    """
    folder = find(checkpoint_id)
    manifest = read_manifest(folder)
    verify_all(folder, manifest)
    return len(manifest["tensors"])


def verify_all(folder: Path, manifest: dict[str, Any], under: str = "") -> None:
    """Reads all tensors whose names begin with `under`. Raises CheckpointException that names those.

    Args:
        folder: of the checkpoint.
        manifest: its own.
        under: a name's beginning; "" for all.
    """
    blocks = []
    for name, entry in manifest["tensors"].items():
        for piece in entry["pieces"] if name.startswith(under) else ():
            length = math.prod(piece["box"][1]) * itemsize(entry["dtype"])
            blocks += [(name, piece, i, length) for i in range(len(piece["checksums"]))]
    try:
        _verify(Shards(folder, manifest, set(manifest["files"])), blocks)
    except OSError as error:
        raise CheckpointException(f"{folder}: {error}") from error
