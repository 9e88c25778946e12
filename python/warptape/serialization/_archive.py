"""The zip archive that holds a file's pickle and storages: read with every byte accounted for, and written.

The format is PKWARE's APPNOTE 6.3.10, of which files of tensors use little: records without compression, each
of which begins at a multiple of 64 bytes, and a directory at the end, zip64 where it must be.
"""

from __future__ import annotations

import io
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

from .. import _C
from ._errors import FileError

LOCAL, CENTRAL, END, END64, LOCATOR, DESCRIPTOR = (
    b"PK" + s for s in (b"\3\4", b"\1\2", b"\5\6", b"\6\6", b"\6\7", b"\7\x08")
)
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_FULL, _FULL16 = 0xFFFFFFFF, 0xFFFF  # "see the zip64 field"
_UTF8, _DESCRIBED = 0x800, 8  # flags: UTF-8 names; checksum and sizes follow the data
_PADDING = int.from_bytes(b"FB", "little")  # the field that PyTorch pads with
ALIGNMENT = 64
CHUNK = 1 << 20  # read and checked while it is in the processor's cache


class Record(NamedTuple):
    """A record: what the directory says of it, and the place of its first byte."""

    name: str
    crc: int
    size: int
    at: int


class Source:
    """Positioned reads from a path's file, from a file object (its part behind where it stands), or of a
    mapping."""

    def __init__(self, file: IO[bytes], mapped: memoryview | None = None) -> None:
        self.file, self.mapped = file, mapped
        # Others may have a descriptor of something else, as a compressed file has
        plain = type(file) in (io.BufferedReader, io.FileIO, io.BufferedRandom)
        self.fd = file.fileno() if plain else None
        self.base = file.tell()
        self.size = file.seek(0, os.SEEK_END) - self.base
        file.seek(self.base)
        self.one_at_a_time = threading.Lock()

    def into(self, at: int, target: memoryview) -> None:
        """Fills target. Any thread may call it."""
        if self.mapped is not None:
            target[:] = self.mapped[at : at + len(target)]
            return
        done = 0
        while done < len(target):
            got = self._some(self.base + at + done, target[done:])
            if not got:
                raise FileError("load: the file became shorter while it was read")
            done += got

    def _some(self, at: int, target: memoryview) -> int:
        if self.fd is not None:
            return os.preadv(self.fd, [target], at)
        with self.one_at_a_time:
            self.file.seek(at)
            if hasattr(self.file, "readinto"):
                return self.file.readinto(target) or 0
            data = self.file.read(len(target))
            target[: len(data)] = data
            return len(data)

    def bytes(self, at: int, size: int) -> bytes:
        """A copy of a part that lies in the file."""
        data = bytearray(size)
        self.into(at, memoryview(data))
        return bytes(data)


class _Part(io.RawIOBase):
    """The bytes of a record."""

    def __init__(self, source: Source, record: Record) -> None:
        self.source, self.at, self.end = source, record.at, record.at + record.size

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        part = memoryview(target)[: self.end - self.at]
        self.source.into(self.at, part)
        self.at += len(part)
        return len(part)


def _fail(why: str) -> FileError:
    return FileError(f"load: {why}; the file is damaged, truncated, or not what torch.save wrote")


class Archive:
    """The records of an archive. FileError unless they fill the file, without overlap or unexplained gap."""

    def __init__(self, source: Source) -> None:
        self.source = source
        start, count, size = self._end()
        directory = source.bytes(start, size)
        entries: list[tuple[str, int, int, int, Any]] = []
        at = 0
        for _ in range(count):
            at = self._entry(directory, at, entries)
        if at != size:
            raise _fail(f"{size - at} bytes follow the last entry of the directory")
        self.records: dict[str, Record] = {}
        place = 0
        for name, crc, length, local, common in sorted(entries, key=lambda e: e[3]):
            if local != place:
                raise _fail(f"record {name!r} begins at byte {local}, and {place} bytes are taken before it")
            begin, described = self._local(Record(name, crc, length, local), common, start)
            if name in self.records:
                raise _fail(f"two records are called {name!r}")
            self.records[name] = Record(name, crc, length, begin)
            place = begin + length + described
        if place != start:
            raise _fail(f"the records end at byte {place}, the directory begins at {start}")
        # PyTorch writes no checksums after set_crc32_options(False): then there is none at all
        self.checked = any(r.crc for r in self.records.values())

    def _end(self) -> tuple[int, int, int]:
        """Where the directory begins, its entries and bytes."""
        source, last = self.source, self.source.size - _END.size
        if last < 0:
            raise _fail("no end of a zip archive is there")
        sig, disk, disk2, here, count, size, start, comment = _END.unpack(source.bytes(last, _END.size))
        if sig != END or comment or disk or disk2 or here != count:
            raise _fail("the end of the zip archive is not where it must be")
        at = last - _LOCATOR.size - _END64.size
        if at >= 0 and source.bytes(last - _LOCATOR.size, 4) == LOCATOR:
            _, disk, place, disks = _LOCATOR.unpack(source.bytes(last - _LOCATOR.size, _LOCATOR.size))
            fields = _END64.unpack(source.bytes(at, _END64.size))
            sig, length, _, _, disk2, disk3, here64, *wide = fields
            small = [(count, _FULL16), (size, _FULL), (start, _FULL)]
            if (
                (sig, length, place) != (END64, _END64.size - 12, at)
                or disk + disk2 + disk3
                or disks != 1
                or here64 != wide[0]
                or any(s not in (full, w) for (s, full), w in zip(small, wide))
            ):
                raise _fail("the zip64 end of the archive contradicts the other end")
            (count, size, start), last = wide, at
        if start + size != last or count * _CENTRAL.size > size:
            raise _fail("the directory of the zip archive does not fit between records and end")
        return start, count, size

    @staticmethod
    def _entry(directory: bytes, at: int, entries: list[tuple[str, int, int, int, Any]]) -> int:
        """Reads an entry of the directory: name, CRC-32, size, place, and what its head repeats (version,
        flags, method, time, date). Returns where the next one begins."""
        if at + _CENTRAL.size > len(directory):
            raise _fail("the directory of the zip archive ends within an entry")
        fields = _CENTRAL.unpack_from(directory, at)
        sig, _, *common, crc, packed, size, names, extras, comments, disk, _, _, local = fields
        at += _CENTRAL.size
        if sig != CENTRAL or comments or disk or at + names + extras > len(directory):
            raise _fail("an entry of the zip archive's directory is none")
        try:
            name = directory[at : at + names].decode()
        except UnicodeDecodeError:
            raise _fail("a name in the zip archive is not UTF-8") from None
        extra = directory[at + names : at + names + extras]
        size, packed, local = _zip64(extra, [size, packed, local])
        if common[2] or packed != size or common[1] & ~(_UTF8 | _DESCRIBED):
            raise _fail(f"record {name!r} is compressed or encrypted, as no file of torch.save is")
        entries.append((name, crc, size, local, common))
        return at + names + extras

    def _local(self, record: Record, common: list[int], limit: int) -> tuple[int, int]:
        """Where the data begin of a record whose head is at `at`, and the bytes of the descriptor behind."""
        name, crc, size, at = record
        if at + _LOCAL.size > limit:
            raise _fail(f"record {name!r} does not begin in the file")
        fields = _LOCAL.unpack(self.source.bytes(at, _LOCAL.size))
        sig, *common2, crc2, packed2, size2, names, extras = fields
        begin = at + _LOCAL.size + names + extras
        if sig != LOCAL or common2 != common or begin + size > limit:
            raise _fail(f"record {name!r} has another head than the directory says")
        rest = self.source.bytes(at + _LOCAL.size, names + extras)
        size2, packed2 = _zip64(rest[names:], [size2, packed2])
        if rest[:names] != name.encode():
            raise _fail(f"record {name!r} has another name in its head")
        if not common[1] & _DESCRIBED:
            if (crc2, size2, packed2) != (crc, size, size):
                raise _fail(f"record {name!r} has another size or checksum in its head")
            return begin, 0
        for form in ("<4sLLL", "<4sLQQ"):
            length = struct.calcsize(form)
            if begin + size + length <= limit:
                said = struct.unpack(form, self.source.bytes(begin + size, length))
                if said == (DESCRIPTOR, crc, size, size) and (crc2, size2, packed2) in (
                    (0, 0, 0),
                    (crc, size, size),
                ):
                    return begin, length
        raise _fail(f"record {name!r} is not followed by its size and checksum")

    def fill(self, targets: dict[str, memoryview | None]) -> None:
        """Reads records into memory of their sizes, or (None) only checks them, several at a time."""
        work = iter(targets.items())
        lock, faults = threading.Lock(), list[BaseException]()

        def run() -> None:
            try:
                while not faults:
                    with lock:
                        item = next(work, None)
                    if item is None:
                        return
                    self._read(self.records[item[0]], item[1])
            except BaseException as error:
                faults.append(error)

        total = sum(self.records[name].size for name in targets)
        count = min(4, _C.get_num_threads(), len(targets), 1 + total // (4 * CHUNK))
        others = [threading.Thread(target=run) for _ in range(count - 1)]
        for thread in others:
            thread.start()
        run()
        for thread in others:
            thread.join()
        if faults:
            raise faults[0]

    def _read(self, record: Record, target: memoryview | None) -> None:
        crc, mapped = 0, self.source.mapped
        scratch = (
            memoryview(bytearray(min(CHUNK, record.size))) if target is None and mapped is None else None
        )
        for done in range(0, record.size, CHUNK):
            end = min(done + CHUNK, record.size)
            if target is None and mapped is not None:
                part = mapped[record.at + done : record.at + end]
            else:
                part = target[done:end] if target is not None else scratch[: end - done]  # type: ignore[index]
                self.source.into(record.at + done, part)
            if self.checked:
                crc = _C._crc32(part, crc)
        if crc != record.crc:
            raise FileError(
                f"load: record {record.name!r} is damaged: its CRC-32 is {crc:08x}, not {record.crc:08x}"
            )

    def open(self, name: str) -> io.BufferedReader:
        """A record as a file, once it is checked: never in memory as a whole."""
        self._read(self.records[name], None)
        return io.BufferedReader(_Part(self.source, self.records[name]))  # type: ignore[type-var]


def _zip64(extra: bytes, values: list[int]) -> list[int]:
    """Values of a header, with those replaced that stand in the zip64 field. Refuses other fields than that
    and padding."""
    at, wide = 0, iter(list[int]())
    while at < len(extra):
        kind, length = struct.unpack_from("<2H", extra, at) if at + 4 <= len(extra) else (0, 0)
        body = extra[at + 4 : at + 4 + length]
        padding = kind == _PADDING and not (body.strip(b"\0") and body.strip(b"Z"))
        if len(body) != length or (not padding and (kind != 1 or length % 8)):
            raise _fail("a head in the zip archive has a field that is neither padding nor a size")
        if kind == 1:
            wide = (n for (n,) in struct.iter_unpack("<Q", body))
        at += 4 + length
    return [next(wide, v) if v == _FULL else v for v in values]


# ---- writing ----


_LIMIT = (1 << 31) - 1  # what Python's zipfile writes without zip64
_DATE = 1 << 5 | 1  # 1980-01-01


def pieces(folder: str, records: Iterable[tuple[str, Any]], checksums: bool = True) -> Iterator[Any]:
    """The bytes of an archive, one buffer after the other, of (name, contiguous buffer) records: those that
    Python's zipfile writes, in a tenth of its time."""
    directory, count, at = bytearray(), 0, 0
    for name, data in records:
        label, size = f"{folder}/{name}", len(data)
        encoded, utf8 = label.encode(), 0 if label.isascii() else _UTF8
        crc = _C._crc32(data) if checksums else 0
        wide, far = size > _LIMIT, at > _LIMIT
        version = 45 if wide or far else 20
        said, more = (_FULL, struct.pack("<2H2Q", 1, 16, size, size)) if wide else (size, b"")
        gap = -(at + _LOCAL.size + len(encoded) + 4 + len(more)) % ALIGNMENT
        common = (version, utf8, 0, 0, _DATE, crc, said, said, len(encoded))
        head = _LOCAL.pack(LOCAL, *common, 4 + gap + len(more)) + encoded
        head += struct.pack("<2H", _PADDING, gap) + bytes(gap) + more
        yield head
        yield data
        large = [size, size] * wide + [at] * far
        extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        place = _FULL if far else at
        directory += _CENTRAL.pack(CENTRAL, version | 3 << 8, *common, len(extra), 0, 0, 0, 0, place)
        directory += encoded + extra
        count += 1
        at += len(head) + size
    end, size = at + len(directory), len(directory)
    if count > _FULL16 or at > _LIMIT or size > _LIMIT:
        wide_end = (END64, _END64.size - 12, 45, 45, 0, 0, count, count, size, at)
        directory += _END64.pack(*wide_end) + _LOCATOR.pack(LOCATOR, 0, end, 1)
        count, size, at = min(count, _FULL16), min(size, _FULL), min(at, _FULL)
    yield directory + _END.pack(END, 0, 0, count, count, size, at, 0)
