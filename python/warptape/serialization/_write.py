"""Where save() puts its bytes: a path has them all, or what it had before."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from typing import Any

from .._interchange import raw_bytes
from ._archive import pieces
from ._pickler import Pickler


def _records(pickled: Pickler) -> Iterator[tuple[str, Any]]:
    yield "data.pkl", bytes(pickled.data)
    yield ".format_version", b"1"
    yield ".storage_alignment", b"64"
    yield "byteorder", b"little"
    for i, data in enumerate(pickled.storages):
        host = data.cpu()  # lives as long as its bytes are in use
        yield f"data/{i}", raw_bytes(host)
    yield "version", b"3\n"


def to_file(obj: Any, file: Any) -> None:
    """Writes to a file object, which need not be seekable."""
    for piece in pieces("archive", _records(Pickler(obj))):
        rest = memoryview(piece)
        while len(rest):
            done = file.write(rest[: 1 << 26])
            rest = rest[done if isinstance(done, int) else 1 << 26 :]  # raw files may take a part only


def to_path(obj: Any, path: str) -> None:
    """Writes beside the path's file and then takes its place, with its permissions; links are followed."""
    pickled = Pickler(obj)
    folder, base = os.path.split(os.path.realpath(path))
    target = os.path.join(folder, base)
    if not os.path.isdir(folder):
        raise RuntimeError(f"Parent directory {os.path.dirname(path)} does not exist.")
    try:
        name = os.path.splitext(os.path.basename(path))[0].encode().decode() or "archive"
    except UnicodeEncodeError:
        name = "archive"
    there = None
    if os.path.exists(target):
        with open(target, "r+b" if os.path.isfile(target) else "wb", 0) as file:  # may it be written?
            there = os.fstat(file.fileno())
            if not stat.S_ISREG(there.st_mode):  # a pipe or a device: there is no other way
                to_file(obj, file)
                return
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    try:
        fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except PermissionError:
        if there is None:
            raise
        with open(target, "wb") as file:  # the folder takes no new file, but this one may be written
            to_file(obj, file)
        return
    try:
        with open(fd, "wb", 1 << 20) as file:
            if there is not None:
                os.fchmod(fd, stat.S_IMODE(there.st_mode))
            for piece in pieces(name, _records(pickled)):
                file.write(piece)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
