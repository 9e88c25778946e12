"""Files on disk: a path has all of a file or what it had before, and tensors may lie in a mapped file."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import secrets
import stat
from collections.abc import Iterable
from typing import Any

import warptape

from .. import _C
from .._interchange import raw_bytes
from .._tensor import Tensor


class Mapped:
    """A file in memory, of which a write makes copies; tensors on it keep it there."""

    def __init__(self, file: Any) -> None:
        self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.owner = (ctypes.c_char * len(self.map)).from_buffer(self.map)

    def tensor(self, at: int, dtype: Any, shape: tuple[int, ...]) -> Tensor:
        """The tensor that begins at a byte; a copy where the processor would not take it from there."""
        size = math.prod(shape) * dtype.itemsize
        if at % dtype.itemsize or not size:
            copy = warptape.empty(shape, dtype=dtype, device="cpu")
            if size:
                raw_bytes(copy)[:] = memoryview(self.map)[at : at + size]
            return copy
        place = ctypes.addressof(self.owner) + at
        return _C._from_memory(self.owner, place, dtype, shape, None, "cpu")


def write_all(file: Any, pieces: Iterable[Any]) -> None:
    """Writes buffers to a file object, which need not be seekable."""
    for piece in pieces:
        rest = memoryview(piece)
        while len(rest):
            done = file.write(rest[: 1 << 26])
            rest = rest[done if isinstance(done, int) else 1 << 26 :]  # raw files may take a part only


def replace_file(path: str, pieces: Iterable[Any]) -> None:
    """Writes buffers beside the path's file and then takes its place, with its permissions; follows links."""
    folder, base = os.path.split(os.path.realpath(path))
    target = os.path.join(folder, base)
    if not os.path.isdir(folder):
        raise RuntimeError(f"Parent directory {os.path.dirname(path)} does not exist.")
    there = None
    if os.path.exists(target):
        with open(target, "r+b" if os.path.isfile(target) else "wb", 0) as file:  # may it be written?
            there = os.fstat(file.fileno())
            if not stat.S_ISREG(there.st_mode):  # a pipe or a device: there is no other way
                write_all(file, pieces)
                return
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    try:
        fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except PermissionError:
        if there is None:
            raise
        with open(target, "wb") as file:  # the folder takes no new file, but this one may be written
            write_all(file, pieces)
        return
    try:
        with open(fd, "wb", 1 << 20) as file:
            if there is not None:
                os.fchmod(fd, stat.S_IMODE(there.st_mode))
            write_all(file, pieces)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
