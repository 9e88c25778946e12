"""Flight records: what ranks wrote about their last calls, read back and checked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION = 1
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_IN_PLACE = ("broadcast", "all_reduce", "reduce")  # of any number of tensors
_STATES = ("queued", "started", "completed", "failed")


class FlightError(ValueError):
    """A file is no flight record, or files do not belong together."""


@dataclass(frozen=True)
class Call:
    """One call of one rank. `root` (or the other rank of send and recv; -1: any) is a rank of the group."""

    id: int
    sequence: int  # in its group; 0 of send and recv
    group: str
    op: str
    reduce: str
    root: int
    tag: int
    dtype: str
    shape: tuple[int, ...]  # of the first tensor
    tensors: int
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

    def signature(self) -> tuple[Any, ...]:
        """What the calls of all ranks must have in common."""
        if self.op == "barrier":
            return (self.op,)
        return (
            self.op,
            self.dtype,
            self.shape if self.op != "all_to_all" else None,
            self.reduce if self.op in _REDUCING else None,
            self.root if self.op in _ROOTED else None,
            self.tensors if self.op in _IN_PLACE else None,
        )

    def __str__(self) -> str:
        if self.op == "barrier":
            return f"{self.op}() at {self.site}"
        parts = [f"{self.dtype}{list(self.shape)}"]
        if self.op in _IN_PLACE and self.tensors > 1:
            parts[0] += f" and {self.tensors - 1} more"
        parts += [self.reduce] if self.op in _REDUCING else []
        parts += [f"root {self.root}"] if self.op in _ROOTED else []
        if self.point_to_point:
            peer = "any rank" if self.root < 0 else f"rank {self.root}"
            parts.append(f"{'to' if self.op == 'send' else 'from'} {peer}, tag {self.tag}")
        return f"{self.op}({', '.join(parts)}) at {self.site}"


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


def _integers(value: list[Any], name: str, where: str) -> list[int]:
    if not all(isinstance(each, int) for each in value):
        raise FlightError(f"{where}: not a flight record: expected integers in {name!r}")
    return value


def _read_call(raw: Any, where: str) -> Call:
    fields = {
        name: _field(raw, name, kind, where)
        for name, kind in [
            *((each, int) for each in ("id", "sequence", "root", "tag", "tensors")),
            *((each, str) for each in ("group", "op", "reduce", "dtype", "site", "state")),
            *((each, float) for each in ("queued", "ended")),
        ]
    }
    if fields["state"] not in _STATES:
        raise FlightError(f"{where}: not a flight record: a call has the state {fields['state']!r}")
    shape = _integers(_field(raw, "shape", list, where), "shape", where)
    return Call(**fields, shape=tuple(shape))


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
    groups = {
        _text(name): _integers(ranks if isinstance(ranks, list) else [None], "groups", where)
        for name, ranks in _field(raw, "groups", dict, where).items()
    }
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
        found = sorted(path.rglob("flight_*.json")) if path.is_dir() else [path]
        if not found:
            raise FlightError(f"{path}: no flight_*.json in this folder")
        files += found
    if not files:
        raise FlightError("no files were given")
    dumps = sorted((read_dump(path) for path in files), key=lambda dump: dump.time)
    jobs = {(dump.job, dump.world_size) for dump in dumps}
    if len(jobs) > 1:
        names = "; ".join(f"{job} of {size} ranks" for job, size in sorted(jobs))
        raise FlightError(f"these are dumps of {len(jobs)} jobs ({names}); give those of one")
    last = max(dump.restart for dump in dumps)
    return {dump.rank: dump for dump in dumps if dump.restart == last}
