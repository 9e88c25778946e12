"""save() and async_save(): each rank writes what it owns, and the whole appears at once or not at all.

Note: what a kill leaves. Shards and manifest are written and synced in a hidden folder beside the
checkpoint's, which then takes its name. One that is there already is moved aside first, under a name at
which reading looks too, and removed at the end. So at any moment one whole checkpoint can be read.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import os
import secrets
import shutil
import threading
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._C import DistStoreError
from ...core import Tensor
from ...core.interchange import raw_bytes
from ...serialization.files import sync_folder
from ...utils.safetensors import KIND_OF, encode_header, itemsize
from .. import state as _state
from .layout import FORMAT, MANIFEST, PRESENT, blocks_of, crc32c, encode_manifest, piece_name
from .plan import WritePlan, agree, describe, exchange, merge, offer, world_of
from .slices import Slice
from .state import Collected, collect

if TYPE_CHECKING:
    from warptape.distributed.state import Group

PATIENCE = timedelta(minutes=30)  # in which the slowest rank must have written its shard
TOGETHER = 1 << 16  # bytes; what is smaller is gathered before it is written
READING = timedelta(seconds=30)  # in which the slowest rank must have read the result
Piece = tuple[str, str, tuple[int, ...], Slice, Tensor]  # name, kind, shape of the whole, where, values
_in_flight: set[str] = set()  # temporary folders of saves of this process


def deprecated(name: str, instead: str) -> None:
    """Warns as PyTorch's older function does.

    Args:
        name: of the older function.
        instead: of the newer one.
    """
    warnings.warn(
        f"`{name}` is deprecated and will be removed in future versions.Please use `{instead}` instead.",
        FutureWarning,
        stacklevel=3,
    )


def aside(path: Path) -> Path:
    """Where the checkpoint before lies while a new one takes its place.

    Args:
        path: of the checkpoint.
    """
    return path.with_name(f".{path.name}.old")


def write_file(path: Path, parts: Iterable[memoryview | bytes]) -> None:
    """A new file, on the disk when this returns.

    Args:
        path: must not exist.
        parts: bytes, in order.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    small = bytearray()  # parts that are written together

    def write(data: memoryview | bytearray) -> None:
        with memoryview(data) as view:
            at = 0
            while at < len(view):
                at += os.write(fd, view[at : at + (1 << 30)])

    try:
        for part in parts:
            if len(part) >= TOGETHER or len(small) + len(part) >= 16 * TOGETHER:
                write(small)
                small.clear()
            if len(part) >= TOGETHER:
                write(memoryview(part))
            else:
                small += part
        write(small)
        os.fsync(fd)
    finally:
        os.close(fd)


def is_checkpoint(path: Path) -> bool:
    """Whether a save wrote the folder.

    Args:
        path: of a folder.
    """
    return (path / MANIFEST).is_file()


def _begin(path: Path) -> str:
    """Makes the temporary folder; removes what killed saves of the same name left. Rank 0."""
    if path.exists() and not is_checkpoint(path) and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path} is there and is no checkpoint; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    before = aside(path)
    if before.exists():
        if path.exists():
            shutil.rmtree(before)
        else:
            os.rename(before, path)
    for left in list(path.parent.iterdir()):
        if left.name.startswith(f".{path.name}.tmp-") and str(left) not in _in_flight:
            shutil.rmtree(left)
    folder = path.with_name(f".{path.name}.tmp-{secrets.token_hex(8)}")
    os.mkdir(folder)
    _in_flight.add(str(folder))
    return str(folder)


def _commit(path: Path, folder: Path, manifest: dict[str, Any]) -> None:
    """The checkpoint appears. Rank 0, when all shards are on the disk."""
    write_file(folder / MANIFEST, [encode_manifest(manifest)])
    write_file(folder / PRESENT, [])
    sync_folder(folder)
    before = aside(path)
    replaces = path.exists()
    if replaces:
        os.rename(path, before)
    try:
        os.rename(folder, path)
    except BaseException:
        if replaces:
            os.rename(before, path)
        raise
    sync_folder(path.parent)
    if replaces:
        with contextlib.suppress(OSError):  # the next save removes it
            shutil.rmtree(before)


def _own_pieces(collected: Collected, plan: WritePlan, rank: int, copy: bool) -> list[Piece]:
    """What this rank writes; copies if the values may change before they are written."""
    pieces: list[Piece] = []
    for name, h in collected.tensors.items():
        for i, where in enumerate(h.slices):
            if plan.owners[name].get(where) == rank:
                part = h.local(i).detach()
                part = part.clone() if copy and part.is_cpu else part
                pieces.append((name, KIND_OF[h.tensor.dtype], h.shape, where, part.cpu() if copy else part))
    return sorted(pieces, key=lambda piece: -itemsize(piece[1]))  # so that all are aligned


def _write_shard(folder: Path, rank: int, pieces: list[Piece]) -> dict[str, Any]:
    """Writes this rank's file. Returns what the manifest says of it."""
    file = f"shard-{rank:05d}.safetensors"
    names = [(piece_name(name, shape, where), kind, where[1]) for name, kind, shape, where, _ in pieces]
    header = encode_header(names, {"format": FORMAT})
    listed, at = [], len(header)
    parts: list[memoryview | bytes] = [header]
    values = [part.cpu().contiguous() for *_, part in pieces]  # kept as long as their bytes are used
    for (name, _, _, where, _), value in zip(pieces, values):
        data = raw_bytes(value)
        listed.append([name, {"box": where, "file": file, "at": at, "checksums": blocks_of(data)}])
        at += len(data)
        parts.append(data)
    write_file(folder / file, parts)
    return {
        "file": {file: {"bytes": at, "header": len(header), "checksum": crc32c(header)}},
        "pieces": listed,
    }


class Rendezvous:
    """How ranks tell rank 0 that they are done, and rank 0 the others: over the store, which any thread may
    use while the training runs its collectives."""

    def __init__(self, rank: int, world: int, token: str) -> None:
        self.rank, self.world, self.at = rank, world, f"checkpoint/{token}"
        self.store = _state.state().store if world > 1 else None

    def gather(self, value: object) -> list[Any] | None:
        """The values of all ranks, on rank 0.

        Args:
            value: what JSON can hold.

        Returns: None on other ranks.
        """
        if self.store is None:
            return [value]
        if self.rank:
            self.store.set(f"{self.at}/{self.rank}", json.dumps(value))
            return None
        out = [value]
        for r in range(1, self.world):
            self.store.wait([f"{self.at}/{r}"], PATIENCE)
            out.append(json.loads(self.store.get(f"{self.at}/{r}")))
            self.store.delete_key(f"{self.at}/{r}")
        return out

    def broadcast(self, value: object) -> Any:
        """Rank 0's value, on all ranks.

        Args:
            value: what JSON can hold; other ranks' is not looked at.
        """
        if self.store is None:
            return value
        end, count, all_read = (f"{self.at}/{key}" for key in ("end", "count", "all_read"))
        if self.rank:
            self.store.wait([end], 2 * PATIENCE)
            value = json.loads(self.store.get(end))
            if self.store.add(count, 1) == self.world - 1:
                self.store.set(all_read, "")
            return value
        self.store.set(end, json.dumps(value))
        # Rank 0 may serve the store, and end its process next. A rank that is gone does not undo the save.
        with contextlib.suppress(DistStoreError):
            self.store.wait([all_read], READING)
        for key in (end, count, all_read):
            self.store.delete_key(key)
        return value


def _finish(
    path: Path,
    folder: Path,
    plan: WritePlan,
    pieces: list[Piece] | Exception,
    rendezvous: Rendezvous,
    metadata: object,
) -> None:
    """Writes, meets, commits."""
    cause: BaseException | None = None
    try:
        if isinstance(pieces, Exception):
            raise pieces
        own = {**_write_shard(folder, rendezvous.rank, pieces), "fault": None} if pieces else {"fault": None}
    except Exception as error:
        own, cause = {"fault": describe(error)}, error
    every = rendezvous.gather(own)
    faults: list[str | None] = []
    if every is not None:
        faults = [each["fault"] for each in every]
        try:
            if not any(faults):
                _commit(path, folder, _manifest(plan, every, metadata))
        except Exception as error:
            faults[0], cause = describe(error), error
        if any(faults):
            shutil.rmtree(folder, ignore_errors=True)
    agree(f"save to {path}", rendezvous.broadcast(faults), cause)


def _manifest(plan: WritePlan, every: list[dict[str, Any]], metadata: object) -> dict[str, Any]:
    tensors = {name: {**entry, "pieces": []} for name, entry in plan.tensors.items()}
    files: dict[str, Any] = {}
    for each in every:
        files |= each.get("file", {})
        for name, piece in each.get("pieces", ()):
            tensors[name]["pieces"].append(piece)
    return {
        "metadata": metadata,
        "files": files,
        "tensors": tensors,
        "aliases": plan.aliases,
        "objects": plan.objects,
        "containers": plan.containers,
    }


def _start(
    state: Any,
    checkpoint_id: str | os.PathLike[str],
    group: Group,
    metadata: object,
    copy: bool,
    no_dist: bool,
) -> Callable[[], None]:
    """Everything that needs the other ranks' main threads, and the copy; returns the rest."""
    path = Path(os.path.abspath(checkpoint_id))
    rank, world = world_of(group, no_dist)
    cause: BaseException | None = None
    folder, offered, fault = "", None, None
    try:
        collected = collect(state, rank, world)
        offered = offer(collected)
        if rank == 0:
            folder = _begin(path)
    except Exception as error:
        fault, cause = describe(error), error
    try:
        offers = exchange([fault, offered, folder], group, world)
        agree(f"save to {path}", [each[0] for each in offers], cause)
        plan = merge([each[1] for each in offers])
    except BaseException:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
            _in_flight.discard(folder)
        raise
    folder = offers[0][2]
    pieces: list[Piece] | Exception  # an error is told where ranks meet: none of them may wait in vain
    try:
        pieces = _own_pieces(collected, plan, rank, copy)
    except Exception as error:
        pieces = error
    rendezvous = Rendezvous(rank, world, Path(folder).name)

    def finish() -> None:
        try:
            _finish(path, Path(folder), plan, pieces, rendezvous, metadata)
        finally:
            _in_flight.discard(folder)

    return finish


def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: Any = None,
    planner: object = None,
    process_group: Group = None,
    metadata: object = None,
    no_dist: bool = False,
) -> None:
    """Writes what a dict holds to the folder `checkpoint_id`, from any layout of ranks. Collective.

    Args:
        state_dict: names -> models, pipeline stages, optimizers, schedulers, generators and other things with
            state_dict and load_state_dict, tensors, plain data, and dicts of these. What differs between
            ranks, and is not split, goes into PerRank.
        checkpoint_id: a path that all ranks share. A checkpoint that is there is replaced when the new one is
            whole.
        storage_writer: FileSystemWriter(path) in place of checkpoint_id, or a HuggingFaceStorageWriter.
        planner: DefaultSavePlanner; it changes nothing.
        process_group: the ranks that save; None for all.
        metadata: plain data for the manifest.
        no_dist: each process that calls saves by itself and talks to no other.

    Raises: CheckpointException, on every rank, when any of them fails; the checkpoint before is still there.
    """
    start = _starting("save", checkpoint_id, storage_writer)
    start(state_dict, group=process_group, metadata=metadata, copy=False, no_dist=no_dist)()


def _starting(
    what: str, checkpoint_id: str | os.PathLike[str] | None, storage_writer: Any
) -> Callable[..., Callable[[], None]]:
    """_start, or that of a writer that has its own, for the place that is meant."""
    if storage_writer is not None:
        checkpoint_id = storage_writer.path if checkpoint_id is None else checkpoint_id
    if checkpoint_id is None:
        raise ValueError(f"{what}: expected checkpoint_id or storage_writer")
    start = getattr(storage_writer, "start", _start)
    return functools.partial(start, checkpoint_id=checkpoint_id)


def save_state_dict(
    state_dict: dict[str, Any],
    storage_writer: Any,
    process_group: Group = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    planner: object = None,
) -> None:
    """`save(state_dict, storage_writer=..)`, deprecated as in PyTorch; no rank is the coordinator.

    Args:
        state_dict: what is saved.
        storage_writer: names the folder.
        process_group: the ranks that save.
        coordinator_rank, planner: without effect.
        no_dist: whether this rank saves alone.
    """
    deprecated("save_state_dict", "save")
    save(state_dict, storage_writer=storage_writer, process_group=process_group, no_dist=no_dist)


class AsyncCheckpointerType(enum.Enum):
    """Who writes what `async_save` copied."""

    THREAD = "thread"
    PROCESS = "process"


def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: Any = None,
    planner: object = None,
    process_group: Group = None,
    async_checkpointer_type: AsyncCheckpointerType = AsyncCheckpointerType.THREAD,
    metadata: object = None,
    no_dist: bool = False,
) -> Future[None]:
    """As save, but returns when the values are copied; a thread writes them. `result()` of the future waits,
    and raises what save would. Wait for it before the job's ranks leave.

    Raises: NotImplementedError for PROCESS.
    """
    if async_checkpointer_type is not AsyncCheckpointerType.THREAD:
        raise NotImplementedError(
            "async_save: a thread of this process writes; use AsyncCheckpointerType.THREAD"
        )
    start = _starting("async_save", checkpoint_id, storage_writer)
    finish = start(state_dict, group=process_group, metadata=metadata, copy=True, no_dist=no_dist)
    future: Future[None] = Future()

    def run() -> None:
        try:
            finish()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="checkpoint").start()
    return future
