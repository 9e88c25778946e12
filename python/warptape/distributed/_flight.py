"""Flight records: what ranks wrote about their last calls, read back and checked."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION = 2
LARGEST_FILE = 16 << 20  # bytes; 2,000 calls have some 500 kB
MOST_RANKS = 1 << 20
_STATES = ("queued", "started", "completed", "failed")


class FlightError(ValueError):
    """A file is no flight record, or files do not belong together."""


@dataclass(frozen=True)
class RecordedCall:
    """One call of one rank. `call`, as "all_reduce(float32[4], sum)", is what the ranks of a collective must
    have in common. `root` (or the other rank of send and recv; -1: any) is a rank of the group."""

    id: int
    sequence: int  # in its group; 0 of send and recv
    group: str
    call: str
    op: str
    root: int
    tag: int
    state: str
    site: str
    queued: float  # seconds since the epoch
    ended: float

    @property
    def over(self) -> bool:
        """Whether it came to a good end."""
        return self.state == "completed"

    @property
    def point_to_point(self) -> bool:
        """Whether it is a send or a recv."""
        return self.op in ("send", "recv")

    def __str__(self) -> str:
        return f"{self.call} at {self.site}"


@dataclass(frozen=True)
class Dump:
    """What one rank wrote."""

    file: Path
    job: str
    rank: int
    world_size: int
    restart: int  # how often the job had been started again
    pid: int
    time: float  # seconds since the epoch
    reason: str
    failure: str  # what first ended a group of this rank; "" if nothing
    groups: dict[str, list[int]]  # ranks of the job, in the group's order
    calls: list[RecordedCall]

    @property
    def whole(self) -> bool:
        """Whether no call is too long ago to be in it."""
        return not self.calls or self.calls[0].id == 1


def _text(value: str, lines: bool = False) -> str:
    """Without what would move a terminal's cursor, line breaks too unless `lines`."""
    return "".join(c if c.isprintable() or (lines and c == "\n") else "?" for c in value)


def _number(value: int | float, kind: type) -> bool:
    """Whether a number of JSON is one that a rank could have written."""
    if isinstance(value, bool) or (kind is int and not isinstance(value, int)):
        return False
    return abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)


def _field(raw: Any, name: str, kind: type, where: str) -> Any:
    value = raw.get(name) if isinstance(raw, dict) else None
    if isinstance(value, (int, float)) and kind in (int, float) and _number(value, kind):
        return kind(value)
    if not isinstance(value, kind) or kind in (int, float):
        raise FlightError(f"{where}: not a flight record: expected a field {name!r} of type {kind.__name__}")
    return _text(value, name in ("failure", "reason")) if isinstance(value, str) else value


def _read_bytes(path: Path) -> bytes:
    """What is in a file, if it is one and not too large. Raises FlightError and OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FlightError(f"{path}: not a file")
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise FlightError(f"{path}: not a flight record: more than {LARGEST_FILE} bytes")
    return data


def _read_groups(raw: Any, world_size: int, where: str) -> dict[str, list[int]]:
    groups = {_text(name): ranks for name, ranks in _field(raw, "groups", dict, where).items()}
    for ranks in groups.values():
        if not isinstance(ranks, list) or not all(type(r) is int and 0 <= r < world_size for r in ranks):
            raise FlightError(f"{where}: not a flight record: expected ranks of the job in 'groups'")
        if len(set(ranks)) != len(ranks):
            raise FlightError(f"{where}: not a flight record: a rank is twice in one of 'groups'")
    return groups


def _read_call(raw: Any, where: str) -> RecordedCall:
    fields = {
        name: _field(raw, name, kind, where)
        for name, kind in [
            *((each, int) for each in ("id", "sequence", "root", "tag")),
            *((each, str) for each in ("group", "call", "op", "site", "state")),
            *((each, float) for each in ("queued", "ended")),
        ]
    }
    if fields["state"] not in _STATES:
        raise FlightError(f"{where}: not a flight record: a call has the state {fields['state']!r}")
    return RecordedCall(**fields)


def read_dump(path: Path) -> Dump:
    """The flight record in a file. Raises FlightError for anything else."""
    where = str(path)
    try:
        raw = json.loads(_read_bytes(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise FlightError(f"{where}: {getattr(error, 'strerror', None) or 'not text'}") from None
    except FlightError:
        raise
    except (ValueError, RecursionError) as error:
        raise FlightError(f"{where}: not JSON, or cut off: {error}") from None
    version = _field(raw, "version", int, where)
    if version != VERSION:
        raise FlightError(f"{where}: a flight record of version {version}; this reads version {VERSION}")
    fields = {
        name: _field(raw, name, kind, where)
        for kind, names in [
            (int, ("rank", "world_size", "restart", "pid")),
            (str, ("job", "reason", "failure")),
            (float, ("time",)),
        ]
        for name in names
    }
    world_size = fields["world_size"]
    if not (0 <= fields["rank"] < world_size <= MOST_RANKS):
        raise FlightError(f"{where}: not a flight record: rank {fields['rank']} of {world_size}")
    groups = _read_groups(raw, world_size, where)
    calls = [_read_call(each, where) for each in _field(raw, "entries", list, where)]
    return Dump(file=path, groups=groups, calls=calls, **fields)


def read_dumps(paths: Iterable[str | Path]) -> dict[int, Dump]:
    """The flight records of one job by rank, from files and folders; the newest of each rank, and of the last
    restart.

    Raises: FlightError when there is none, or when they are of several jobs.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        try:
            records = sorted(path.rglob("flight_*.json")) if path.is_dir() else [path]
        except OSError as error:
            raise FlightError(f"{path}: {error.strerror}") from None
        if not records:
            raise FlightError(f"{path}: no flight_*.json in this folder")
        files += records
    if not files:
        raise FlightError("no files were given")
    dumps = sorted((read_dump(path) for path in files), key=lambda dump: dump.time)
    jobs = {(dump.job, dump.world_size) for dump in dumps}
    if len({job for job, _ in jobs}) > 1:  # one job may have other sizes after a restart
        names = "; ".join(f"{job} of {size} ranks" for job, size in sorted(jobs))
        raise FlightError(f"these are dumps of {len(jobs)} jobs ({names}); give those of one")
    last = max(dump.restart for dump in dumps)
    return {dump.rank: dump for dump in dumps if dump.restart == last}
