"""Files on disk: a path has all of a file or what it had before, and tensors may lie in a mapped file."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import math
import mmap
import os
import re
import secrets
import stat
from collections.abc import Iterable
from typing import IO, Any

from warptape import core as wt

from .. import _C
from ..core import Tensor
from ..core.interchange import raw_bytes

_TEMPORARY = re.compile(r"\.warptape-[0-9a-f]{16}\.tmp")


class Mapped:
    """A file in memory, of which a write makes copies, or, `shared`, reaches the file; tensors on it keep it
    there."""

    def __init__(self, file: IO[bytes], shared: bool = False) -> None:
        self.shared = shared
        self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if shared else mmap.ACCESS_COPY)
        self.owner = (ctypes.c_char * len(self.map)).from_buffer(self.map)

    def tensor(self, at: int, dtype: wt.dtype, shape: tuple[int, ...]) -> Tensor:
        """The tensor that begins at a byte; a copy where the processor would not take it from there."""
        size = math.prod(shape) * dtype.itemsize
        if at % dtype.itemsize or not size:
            copy = wt.empty(shape, dtype=dtype, device="cpu")
            if size:
                raw_bytes(copy)[:] = memoryview(self.map)[at : at + size]
            return copy
        place = ctypes.addressof(self.owner) + at
        return _C._from_memory(self.owner, place, dtype, shape, None, "cpu")


def write_all(file: IO[bytes], pieces: Iterable[Any]) -> None:
    """Writes buffers to a file object, which need not be seekable."""
    for piece in pieces:
        rest = memoryview(piece)
        while len(rest):
            done = file.write(rest[: 1 << 26])
            rest = rest[done if isinstance(done, int) else 1 << 26 :]  # raw files may take a part only


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Makes the names in a folder last, where it may be read and its file system can."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def _write_synced(file: IO[bytes], pieces: Iterable[Any]) -> None:
    write_all(file, pieces)
    file.flush()
    os.fsync(file.fileno())


def _remove_left(folder: str) -> None:
    """Removes temporary files of processes that were killed: whoever still writes one keeps it locked."""
    with contextlib.suppress(PermissionError):
        for name in os.listdir(folder):
            if not _TEMPORARY.fullmatch(name):
                continue
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):  # another user's, or gone meanwhile
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
                finally:
                    os.close(fd)


def _open_temporary(folder: str, path: str) -> tuple[int, bool]:
    """A new locked file in the folder, and whether it has the path already: where the file system can, it has
    no name while it is written, so that a kill leaves nothing."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        if os.path.exists("/proc/self/fd"):  # by which it is reached
            return _locked(os.open(folder, os.O_TMPFILE | flags, 0o666)), False
    while True:
        fd = _locked(os.open(path, os.O_CREAT | os.O_EXCL | flags, 0o666))
        if os.fstat(fd).st_nlink:  # else another save took it for one that a kill left
            return fd, True
        os.close(fd)


def _locked(fd: int) -> int:
    with contextlib.suppress(OSError):  # not every file system has locks
        fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def replace_file(path: str, pieces: Iterable[Any]) -> None:
    """Writes buffers beside the path's file and, once they are on the disk, takes its place, with its
    permissions; follows links."""
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
    _remove_left(folder)
    temporary = os.path.join(folder, f".warptape-{secrets.token_hex(8)}.tmp")
    try:
        fd, named = _open_temporary(folder, temporary)
    except PermissionError:
        if there is None:
            raise
        with open(target, "wb") as file:  # the folder takes no new file, but this one may be written
            _write_synced(file, pieces)
        return
    try:
        with open(fd, "wb", 1 << 20) as file:
            if there is not None:
                os.fchmod(fd, stat.S_IMODE(there.st_mode))
            _write_synced(file, pieces)
            if not named:  # linkat() takes no name that is there, so the file gets one to be renamed from
                os.link(f"/proc/self/fd/{fd}", temporary, src_dir_fd=fd, follow_symlinks=True)
            os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(folder)
