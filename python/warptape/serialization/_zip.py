"""The records of a file one by one: what programs reach torch.serialization's private functions for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from ._archive import LOCAL, Archive, Source, pieces
from .files import replace_file, write_all

if TYPE_CHECKING:
    from warptape.core.types import FileLike


def _is_zipfile(f: IO[bytes]) -> bool:
    """Whether a record of an archive begins where the file stands."""
    start = f.tell()
    head = f.read(len(LOCAL))
    f.seek(start)
    return head == LOCAL


@contextlib.contextmanager
def _open_file_like(name_or_buffer: FileLike, mode: str) -> Iterator[Any]:
    """A path opened, or a file as it is."""
    if isinstance(name_or_buffer, (str, os.PathLike)):
        with open(name_or_buffer, mode) as file:
            yield file
    else:
        yield name_or_buffer
        if "w" in mode:
            name_or_buffer.flush()


class _Reader:
    """The records of an archive, by their names below its folder, each checked as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._archive = Archive(Source(file))
        self._folder = next(iter(self._archive.records), "").partition("/")[0] + "/"

    def has_record(self, name: str) -> bool:
        """Whether there is a record of this name."""
        return self._folder + name in self._archive.records

    def get_all_records(self) -> list[str]:
        """The names, in the order of the file."""
        return [name.removeprefix(self._folder) for name in self._archive.records]

    def _path(self, name: str) -> str:
        if not self.has_record(name):
            raise RuntimeError(f"PytorchStreamReader failed locating file {name}: file not found")
        return self._folder + name

    def get_record(self, name: str) -> bytes:
        """The bytes of a record. RuntimeError where there is none, or its checksum is not right."""
        return self._archive.open(self._path(name)).read()

    def get_record_offset(self, name: str) -> int:
        """The place of a record's first byte, counted from where the archive begins."""
        return self._archive.records[self._path(name)].at


@contextlib.contextmanager
def _open_zipfile_reader(name_or_buffer: FileLike) -> Iterator[_Reader]:
    """Reads the records of a path, or of a file behind where it stands."""
    with _open_file_like(name_or_buffer, "rb") as file:
        yield _Reader(file)


class _Writer:
    """Takes the records of an archive, which is written at its end."""

    def __init__(self) -> None:
        self.records: list[tuple[str, Any]] = []

    def write_record(self, name: str, data: bytes | memoryview, size: int) -> None:
        """Adds a record of the first `size` bytes of a str, a buffer or a storage."""
        if isinstance(data, str):
            data = data.encode()
        elif hasattr(data, "_bytes"):
            data = data._bytes.cpu().numpy()
        self.records.append((name, memoryview(data).cast("B")[:size]))

    def write_record_metadata(self, name: str, size: int) -> None:
        """Adds a record whose bytes are written later."""
        self.records.append((name, b"0" * size))

    def get_all_written_records(self) -> set[str]:
        """The names so far."""
        return {name for name, _ in self.records}


@contextlib.contextmanager
def _open_zipfile_writer(name_or_buffer: FileLike) -> Iterator[_Writer]:
    """Writes what the block adds to a path, or to a file open for writing."""
    writer = _Writer()
    yield writer
    if "version" not in writer.get_all_written_records():
        writer.records.append(("version", b"3\n"))
    if isinstance(name_or_buffer, (str, os.PathLike)):
        path = os.fspath(name_or_buffer)
        name = os.path.splitext(os.path.basename(path))[0]
        replace_file(path, pieces(name or "archive", writer.records))
    else:
        write_all(name_or_buffer, pieces("archive", writer.records))
        name_or_buffer.flush()
