"""Batches from a worker to the main process through memory that both map.

The worker keeps segments (nameless files, mapped). A storage of a batch is written once, into a segment that
no batch uses; the message has only its place. When the main process has let go of all tensors on a segment it
clears the word at its start, and the worker writes the next batch there: pages are made and mapped once, not
per batch. Small storages share a segment, so that what a kept label holds back is bounded.
"""

from __future__ import annotations

import math
import os
import pickle
import weakref
from typing import Any

from warptape import _C
from warptape import core as wt
from warptape.core import Tensor
from warptape.multiprocessing import reductions

from . import worker

_HEAD = 64  # bytes before the first storage: the word, and the alignment of what follows
_FREE, _USED, _LOST = 0, 1, 2  # lost: another process may look at it, it must not be written again
_SMALL = 64 * 1024  # bytes; smaller storages share a segment of this size
_MOST = 256  # segments that a worker keeps track of
_IDLE = 16  # batches after which an unused segment is given back

# The process and its number of forks. A batch that was in use at a fork may be read by the child.
_era = (os.getpid(), 0)


def _before_fork() -> None:
    global _era
    _era = (_era[0], _era[1] + 1)


def _in_child() -> None:
    global _era
    _era, worker.arena = (os.getpid(), 0), None


os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def _on(owner: Any, memory: Tensor, start: int, size: int) -> Tensor:
    """A storage of its own, as bytes, on part of a segment; `owner` lives as long."""
    part = _C._from_memory(owner, memory.data_ptr() + start, _C.uint8, (size,), None, "cpu")
    _C._mark_shared(part)
    return part


class _Segment:
    """A mapped file: `word` is its state, in the file itself."""

    __slots__ = ("batch", "holder", "memory", "number", "word")

    def __init__(self, number: int, memory: Tensor) -> None:
        self.number, self.memory = number, memory
        self.word = memoryview(memory[:1].numpy())
        self.holder: Any = None  # in the worker: weak, alive while a tensor here uses the segment
        self.batch = 0


# ---- the worker's side ----


def _reach(tensor: Tensor) -> tuple[int, int]:
    """The bytes of its storage in which the tensor lies, from and to multiples of 64."""
    extent = 1 if tensor.numel() else 0
    steps: Any = tensor.stride()
    for size, step in zip(tensor.shape, steps):
        extent += (size - 1) * step if extent else 0
    start = tensor.storage_offset() * tensor.dtype.itemsize
    end = start + extent * tensor.dtype.itemsize
    return start // 64 * 64, (end + 63) // 64 * 64


def _clusters(ranges: list[tuple[int, int, int]], size: int) -> list[tuple[int, int, list[int]]]:
    """What to send of a storage: all of it, or the parts that overlap, each with its tensors' numbers.

    A view of a few bytes does not bring the data set along.
    """
    if 2 * sum(end - start for start, end, _ in ranges) >= size:
        return [(0, size, [number for _, _, number in ranges])]
    parts: list[tuple[int, int, list[int]]] = []
    for start, end, number in sorted(ranges):
        if parts and start <= parts[-1][1]:
            first, last, numbers = parts.pop()
            parts.append((first, max(last, end), [*numbers, number]))
        else:
            parts.append((start, max(end, start + 1), [number]))
    return [(start, min(end, size), numbers) for start, end, numbers in parts]


class _Holder:
    """Lives as long as the worker has a tensor on a segment."""

    __slots__ = ("__weakref__",)


class Arena:
    """The segments of one worker, and the message that is being written."""

    def __init__(self) -> None:
        self._segments: dict[int, _Segment] = {}
        self._count = self._batch = 0
        self._fresh: dict[int, tuple[int, int]] = {}  # number: descriptor and size, not yet sent
        self._gone: list[int] = []  # not yet told
        self._start()

    def _start(self) -> None:
        self._taken: dict[int, _Holder] = {}  # segments of this message
        self._kept: list[Tensor] = []
        self._places: dict[int, tuple[int, int, int]] = {}  # by address: segment, start, size
        self._small: tuple[_Segment, int] | None = None  # the segment for small storages, bytes used of it

    def _find(self, size: int) -> _Segment:
        best = None
        for s in self._segments.values():
            held = s.holder is not None and s.holder() is not None
            fits = size <= s.memory.numel() <= max(2 * size, _SMALL)
            if fits and not held and s.word[0] == _FREE and (best is None or s.batch > best.batch):
                best = s  # the one used last is warm in the cache
        if best is None:
            best = self._create(size)
        holder = self._taken[best.number] = _Holder()
        best.holder, best.batch, best.word[0] = weakref.ref(holder), self._batch, _USED
        return best

    def _create(self, size: int) -> _Segment:
        file = os.memfd_create("warptape-batch")
        try:
            os.ftruncate(file, size)
            memory = _C._map_shared(os.dup(file), size, False)
        except BaseException:
            os.close(file)
            raise
        segment = _Segment(self._count, memory)
        self._count += 1
        self._segments[segment.number] = segment
        self._fresh[segment.number] = file, size
        return segment

    def _take(self, size: int) -> Tensor:
        """Bytes in a segment."""
        if size >= _SMALL - _HEAD:
            segment, start = self._find(_HEAD + size), _HEAD
        else:
            if self._small is None or self._small[1] + size > _SMALL:
                self._small = self._find(_SMALL), _HEAD
            segment, start = self._small
            self._small = segment, start + (size + 63) // 64 * 64
        part = _on(self._taken[segment.number], segment.memory, start, size)
        self._places[part.data_ptr()] = segment.number, start, size
        return part

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        """An uninitialised tensor that will not be copied when it is sent in this batch."""
        steps, step = [], 1
        for size in reversed(shape):
            steps.append(step)
            step *= size
        memory = self._take(max(1, math.prod(shape) * dtype.itemsize))
        return _C._on_storage(memory, dtype, shape, tuple(reversed(steps)), 0)

    def pack(self, tag: Any, obj: object) -> tuple[bytes, list[int]]:
        """A message with `obj`, and its descriptors; `sent` or `dropped` must follow."""
        pickler = reductions.Pickler()
        body = pickler.pack(obj)
        table: list[Any] = [None] * len(pickler.tensors)
        files: dict[int, int] = {}
        others: dict[int, tuple[Tensor, list[tuple[int, int, int]]]] = {}
        for number, tensor in enumerate(pickler.tensors):
            memory = _C._storage_bytes(tensor)
            at, file = memory.data_ptr(), _C._shared_descriptor(memory)
            if at in self._places:
                table[number] = *self._places[at], 0
            elif file >= 0:  # by share_memory_(): both sides go on sharing it
                table[number] = -1, files.setdefault(file, len(files)), memory.numel(), 0
            elif tensor.numel():
                others.setdefault(at, (memory, []))[1].append((*_reach(tensor), number))
        for memory, ranges in others.values():
            for start, end, numbers in _clusters(ranges, memory.numel()):
                copy = self._take(end - start)
                copy.copy_(memory[start:end])
                for number in numbers:
                    table[number] = *self._places[copy.data_ptr()], start
        for number in self._taken.keys() - {entry[0] for entry in table if entry}:
            self._segments[number].word[0] = _FREE
        fresh = [(number, size) for number, (_, size) in self._fresh.items()]
        self._kept = pickler.tensors
        head = (tag, fresh, self._gone, len(files), table)
        return pickle.dumps((head, body), pickle.HIGHEST_PROTOCOL), [
            *files,
            *(file for file, _ in self._fresh.values()),
        ]

    def sent(self) -> None:
        """After the message was sent: starts the next."""
        for file, _ in self._fresh.values():
            os.close(file)
        self._fresh.clear()
        self._gone.clear()
        self._kept = []
        self._start()
        self._batch += 1
        self._give_back()

    def dropped(self) -> None:
        """Instead of `pack` and `sent`: what was written is not needed."""
        for number in self._taken:
            self._segments[number].word[0] = _FREE
        self._start()

    def _give_back(self) -> None:
        surplus = len(self._segments) - _MOST
        for number, s in list(self._segments.items()):
            state = s.word[0]
            idle = state == _FREE and s.batch < self._batch - _IDLE
            if idle or state == _LOST or surplus > 0:  # of too many, those in use longest stay the receiver's
                del self._segments[number]
                self._gone.append(number)
                surplus -= 1


# ---- the receiver's side ----


class _Lease:
    """Lives as long as a tensor of one message uses one segment."""

    __slots__ = ("era", "segment")

    def __init__(self, segment: _Segment) -> None:
        self.segment, self.era = segment, _era

    def __del__(self) -> None:
        if self.era is _era:
            self.segment.word[0] = _FREE
        elif self.era[0] == _era[0]:
            self.segment.word[0] = _LOST


class Inbox:
    """What the main process has mapped of one worker's segments."""

    def __init__(self) -> None:
        self._segments: dict[int, _Segment] = {}

    def unpack(self, message: bytes, files: list[int]) -> tuple[Any, Any]:
        """The tag and the object that `Arena.pack` packed, or the exception why there is none. Takes the
        descriptors over."""
        left = dict(enumerate(files))
        (tag, fresh, gone, own, table), body = pickle.loads(message)
        leases: dict[int, _Lease] = {}
        opened: dict[tuple[int, int], Tensor] = {}

        def open_storage(number: int) -> reductions.Found:
            if table[number] is None:
                return wt.empty(0, dtype=_C.uint8), 0
            segment, start, size, skipped = table[number]
            if (segment, start) not in opened:
                if segment < 0:
                    opened[segment, start] = _C._map_shared(left.pop(start), size, True)
                else:
                    if segment not in leases:
                        leases[segment] = _Lease(self._segments[segment])
                    opened[segment, start] = _on(leases[segment], self._segments[segment].memory, start, size)
            return opened[segment, start], skipped

        try:
            for number in gone:
                self._segments.pop(number, None)
            for index, (number, size) in enumerate(fresh, own):
                self._segments[number] = _Segment(number, _C._map_shared(left.pop(index), size, False))
            return tag, reductions.loads(body, open_storage)
        except Exception as error:  # of a class in the batch
            return tag, error
        finally:
            for file in left.values():
                os.close(file)
