"""The files of a trace: what each op, gradient and state of a run hashed to. It needs only Python's library.

A run is a folder with a file per rank, `rank0.trace`. Lines of text, each whole only with its line end:

    warptape-trace 1 {"rank": 0, "world": 1, "hash": "crc32c+crc32", ...}
    K {"kind": "op", "name": "linear", "site": "train.py:12 in step", "module": "head", "values": [...]}
    R 0 53ab0c9d11e2f00a [[...]]    a record: the key's number, a hash for each value, statistics where kept
    S 1                             step 1 begins
    E                               the run ended; a file without it was cut

A key is written when it first comes. "values" has [dtype, shape] of each value of the record.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

FORMAT = "warptape-trace 1 "
NAME = re.compile(r"rank(\d+)\.trace")


class TraceError(ValueError):
    """A trace cannot be read: there is none, or the file is no trace."""


class Key(NamedTuple):
    """What a record is of; equal keys in both runs are compared.

    `kind` is "op", "backward", "random", "collective", "input", "batch", "module", "parameter", "gradient"
    or "state"; `values` has (dtype, shape) of each value.
    """

    kind: str
    name: str
    site: str
    module: str
    values: tuple[tuple[str, tuple[int, ...]], ...]

    def same(self, other: Key) -> bool:
        """Whether both are of one place in a program; lines may have moved.

        Args:
            other: of the other run.
        """
        return self[:2] == other[:2] and self[3:] == other[3:]


class Record(NamedTuple):
    """One line of a trace.

    `number` counts the records of the step, `statistics` has a list of numbers for each value, or is None.
    """

    step: int
    number: int
    key: Key
    hashes: tuple[str, ...]
    statistics: list[list[float]] | None


@dataclass
class Trace:
    """A rank's file.

    Attributes:
        header: what its first line says: rank, world, hash, made_by.
        records: in the order of the run.
        complete: whether the run ended; else the file was cut after the last record.
    """

    path: Path
    header: dict[str, Any]
    records: list[Record] = field(default_factory=list)
    complete: bool = False

    @property
    def steps(self) -> int:
        """How many steps have records."""
        return self.records[-1].step + 1 if self.records else 0


class TraceWriter:
    """Writes a rank's file.

    Args:
        folder: of the run; is made. An older trace of the same rank is replaced.
        rank, world: this rank, and how many there are.
        hash_name: how the hashes are made. Those of two ways are not compared.
        made_by: name and version of the program that writes.
    """

    def __init__(self, folder: str | Path, rank: int, world: int, hash_name: str, made_by: str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.step, self.index = 0, 0
        self._keys: dict[Any, int] = {}
        self._file = (self.folder / f"rank{rank}.trace").open("w", buffering=1 << 20)
        header = {"rank": rank, "world": world, "hash": hash_name, "made_by": made_by}
        self._file.write(f"{FORMAT}{json.dumps(header)}\n")
        self._file.flush()

    def write(self, key: Any, hashes: list[str], statistics: list[list[float]] | None = None) -> None:
        """Adds a record.

        Args:
            key: as a Key has it.
            hashes: of its values, 16 hexadecimal digits each.
            statistics: of its values.
        """
        number = self._keys.get(key)
        if number is None:
            number = self._keys[key] = len(self._keys)
            self._file.write(f"K {json.dumps(Key(*key)._asdict())}\n")
        more = "" if statistics is None else f" {json.dumps(statistics)}"
        self._file.write(f"R {number} {','.join(hashes)}{more}\n")
        self.index += 1

    def next_step(self) -> None:
        """The next step begins; what came before is in the file from now on."""
        self.step, self.index = self.step + 1, 0
        self._file.write(f"S {self.step}\n")
        self._file.flush()

    def close(self, ended: bool = True) -> None:
        """Closes the file.

        Args:
            ended: whether the run came to its end.
        """
        if ended and not self._file.closed:
            self._file.write("E\n")
        self._file.close()


def _header(path: Path, line: str) -> dict[str, Any]:
    try:
        if line.startswith(FORMAT) and line.endswith("\n"):
            header = json.loads(line[len(FORMAT) :])
            if isinstance(header, dict) and {"rank", "world", "hash"} <= header.keys():
                return header
    except ValueError:
        pass
    raise TraceError(f"{path}: no trace: it does not begin with {FORMAT.strip()!r} and a header")


def _key(text: str) -> Key:
    value = json.loads(text)
    values = tuple((str(dtype), tuple(shape)) for dtype, shape in value["values"])
    return Key(value["kind"], value["name"], value["site"], value["module"], values)


def read_file(path: str | Path) -> Trace:
    """A rank's trace, up to the first line that is cut or damaged.

    Args:
        path: of the file.

    Raises:
        TraceError: it cannot be opened, or does not begin as a trace.
    """
    path = Path(path)
    try:
        file = path.open(errors="replace")
    except OSError as error:
        raise TraceError(f"{path}: no trace: {error.strerror}") from error
    with file:
        trace = Trace(path, _header(path, file.readline()))
        keys: list[Key] = []
        step = index = 0
        for line in file:
            if not line.endswith("\n"):
                break
            what, _, rest = line[:-1].partition(" ")
            try:
                if what == "R":
                    number, hashes, *more = rest.split(" ", 2)
                    statistics = json.loads(more[0]) if more else None
                    record = Record(step, index, keys[int(number)], tuple(hashes.split(",")), statistics)
                    trace.records.append(record)
                    index += 1
                elif what == "K":
                    keys.append(_key(rest))
                elif what == "S":
                    step, index = int(rest), 0
                elif what == "E":
                    trace.complete = True
                else:
                    break
            except (ValueError, KeyError, IndexError, TypeError):
                break
    return trace


def read_run(folder: str | Path) -> dict[int, Trace]:
    """The traces of a run by rank.

    Args:
        folder: of the run, or one rank's file.

    Raises:
        TraceError: there is none.
    """
    folder = Path(folder)
    if folder.is_file():
        trace = read_file(folder)
        return {int(trace.header["rank"]): trace}
    files = {int(m[1]): p for p in folder.glob("rank*.trace") if (m := NAME.fullmatch(p.name))}
    if not files:
        raise TraceError(f"{folder}: no trace: expected a folder with rank0.trace, or such a file")
    return {rank: read_file(files[rank]) for rank in sorted(files)}
