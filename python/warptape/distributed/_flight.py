"""Flight records: what ranks wrote about their last calls, read back and checked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION = 2
_STATES = ("queued", "started", "completed", "failed")


class FlightError(ValueError):
    """A file is no flight record, or files do not belong together."""


@dataclass(frozen=True)
class Call:
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
    calls: list[Call]

    @property
    def whole(self) -> bool:
        """Whether no call is too long ago to be in it."""
        return not self.calls or self.calls[0].id == 1


def _text(value: str) -> str:
    """Without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in value)


def _field(raw: Any, name: str, kind: type, where: str) -> Any:
    value = raw.get(name) if isinstance(raw, dict) else None
    if kind is float and isinstance(value, int):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise FlightError(f"{where}: not a flight record: expected a field {name!r} of type {kind.__name__}")
    return _text(value) if isinstance(value, str) else value


def _read_call(raw: Any, where: str) -> Call:
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
    return Call(**fields)


def read_dump(path: Path) -> Dump:
    """The flight record in a file. Raises FlightError for anything else."""
    where = str(path)
    try:
        raw = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise FlightError(f"{where}: {getattr(error, 'strerror', None) or 'not text'}") from None
    except (ValueError, RecursionError) as error:
        raise FlightError(f"{where}: not JSON, or cut off: {error}") from None
    version = _field(raw, "version", int, where)
    if version != VERSION:
        raise FlightError(f"{where}: a flight record of version {version}; this reads version {VERSION}")
    groups = {_text(name): ranks for name, ranks in _field(raw, "groups", dict, where).items()}
    if not all(isinstance(r, list) and all(isinstance(each, int) for each in r) for r in groups.values()):
        raise FlightError(f"{where}: not a flight record: expected integers in 'groups'")
    fields = {
        name: _field(raw, name, kind, where)
        for kind, names in [
            (int, ("rank", "world_size", "restart", "pid")),
            (str, ("job", "reason", "failure")),
            (float, ("time",)),
        ]
        for name in names
    }
    calls = [_read_call(each, where) for each in _field(raw, "entries", list, where)]
    return Dump(file=path, groups=groups, calls=calls, **fields)


def read_dumps(paths: Iterable[str | Path]) -> dict[int, Dump]:
    """The flight records of one job by rank, from files and folders; the newest of each rank, and of the last
    restart.

    Raises: FlightError when there is none, or when they are of several jobs.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        records = sorted(path.rglob("flight_*.json")) if path.is_dir() else [path]
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
