"""Why a worker process failed, told by the worker in a file and printed by the launcher.

The file is torchrun's, so that scripts and launchers of both kinds understand each other:
`{"message": {"message": ..., "extraInfo": {"py_callstack": ..., "timestamp": ...}}}`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ..._C import DistError

__all__ = ["ProcessFailure", "record"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_LIMIT = 64 * 1024  # characters of a traceback kept: what matters is at its ends


def record(fn: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a script's main function: its exception is shown first in the launcher's summary.

    The exception is written to the file named by TORCHELASTIC_ERROR_FILE, if any, and raised on.
    """

    @functools.wraps(fn)
    def recorded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with contextlib.suppress(Exception):  # no stderr to write to
            faulthandler.enable(all_threads=True)
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            write_error(error)
            raise

    return recorded


def record_uncaught(report: Callable[[BaseException], None] = lambda error: None) -> None:
    """Do for the main thread's uncaught exceptions what `record` does, in scripts that do not use it, and
    `report` them."""
    show = sys.excepthook
    if getattr(show, "_warptape_records", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Exception):
            write_error(error)
        report(error)
        show(kind, error, trace)

    hook._warptape_records = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def write_error(error: BaseException) -> None:
    """Write `error` to the file the launcher asked for; a process's first error stays.

    Args:
        error: with its traceback.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if len(text) > _LIMIT:
        text = text[: _LIMIT // 2] + "\n[...]\n" + text[-_LIMIT // 2 :]
    extra: dict[str, Any] = {"py_callstack": text, "timestamp": str(int(time.time()))}
    extra["warptape_follows"] = _follows(error)
    data = {"message": {"message": f"{type(error).__name__}: {error}"[:_LIMIT], "extraInfo": extra}}
    try:
        if os.path.exists(path) and os.path.getsize(path) > 0:
            return
        with open(path, "w") as file:
            json.dump(data, file)
    except OSError as problem:
        print(f"warptape: cannot write the error file {path}: {problem}", file=sys.stderr)


def _follows(error: BaseException) -> bool:
    """Whether an error began with one of a call between ranks, which most often is another rank's fault."""
    seen: set[int] = set()
    while (before := error.__cause__ or error.__context__) is not None and id(before) not in seen:
        seen.add(id(before))
        error = before
    return isinstance(error, DistError)


@dataclass(frozen=True)
class ProcessFailure:
    """One worker's failure: what it wrote to its error file, or else how it ended.

    Args:
        rank, local_rank: in the job and on the host.
        pid, exitcode: of the process; minus the signal's number where it was killed.
        host: its name.
        time: seconds since 1970.
        message, traceback: of its first error.
        shown: whether it was printed.
        follows: whether it ended because another one did.
    """

    rank: int
    local_rank: int
    pid: int
    exitcode: int  # negative: the number of the signal that killed it
    host: str
    time: float  # seconds since the epoch: when the error file was written, else when the process ended
    message: str = ""  # one line or more, such as "ValueError: ..."; empty without an error file
    traceback: str = ""
    shown: bool = False  # its standard error, and so the traceback, is on the launcher's console
    follows: bool = False  # it is of a call between ranks, and most often follows from another rank's failure

    @staticmethod
    def parse(text: str) -> tuple[str, str, bool]:
        """(message, traceback, `follows`) of an error file's text; whatever is no error file counts as the
        message."""
        try:
            message = json.loads(text)["message"]
            if isinstance(message, str):
                return message[:_LIMIT], "", False
            extra = message.get("extraInfo", {})
            trace = str(extra.get("py_callstack", ""))[: 2 * _LIMIT]
            return str(message["message"])[:_LIMIT], trace, extra.get("warptape_follows") is True
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return text.strip()[:_LIMIT], "", False

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProcessFailure:
        """The failure of which another launcher sent the fields; it was shown there. Raises TypeError.

        Args:
            data: what `to_json` gave.
        """
        out = cls(**{**data, "shown": False})
        for field in fields(cls):
            value = getattr(out, field.name)
            kinds: dict[str, Any] = {"int": int, "str": str, "bool": bool, "float": (int, float)}
            if not isinstance(value, kinds[str(field.type)]) or value != value:
                raise TypeError(f"{field.name}: expected {field.type}, got {value!r:.50}")
        return out

    def to_json(self) -> dict[str, Any]:
        """Fields, for another launcher."""
        return asdict(self)

    def ending(self) -> str:
        """How the process ended, in words."""
        if self.exitcode >= 0:
            return f"exit code {self.exitcode}"
        try:
            return f"killed by {signal.Signals(-self.exitcode).name}"
        except ValueError:
            return f"killed by signal {-self.exitcode}"


def root_cause(failures: Iterable[ProcessFailure]) -> ProcessFailure:
    """The failure that came first: the later ones mostly follow from it.

    When is not the whole story: a killed process is seen to have ended only when the kernel has taken it
    down, which on a busy machine is after others told that it is gone. So errors of calls between ranks come
    last, and before them ends of which nothing is known but an exit code.
    """

    def order(failure: ProcessFailure) -> tuple[int, float]:
        known = bool(failure.message) or failure.exitcode < 0
        return (2 if failure.follows else 0 if known else 1), failure.time

    return min(failures, key=order)


def exit_code(failure: ProcessFailure) -> int:
    """What the launcher exits with: the worker's own code, or 128 + signal as shells do.

    1 for a worker that told its error but was stopped before it could end by itself.
    """
    if failure.exitcode < 0 and failure.message:
        return 1
    return 128 - failure.exitcode if failure.exitcode < 0 else failure.exitcode or 1


def summary(failures: Sequence[ProcessFailure]) -> str:
    """The failures as text: the first one's traceback, or its last line where that was shown already, then
    one line for each that followed."""
    first = root_cause(failures)
    clock = time.strftime("%H:%M:%S", time.localtime(first.time)) + f"{first.time % 1:.3f}"[1:]
    lines = [
        f"rank {first.rank} failed first: {first.ending()} "
        f"(local rank {first.local_rank}, pid {first.pid}, host {first.host}, {clock})"
    ]
    if first.traceback or first.message:
        full = "" if first.shown and first.exitcode > 0 else first.traceback
        lines.append((full or first.message).rstrip())
    elif first.exitcode >= 0:
        lines.append(
            "no traceback: decorate the main function with "
            "warptape.distributed.elastic.multiprocessing.errors.record to see it here"
        )
    for failure in sorted(failures, key=lambda failure: failure.time):
        if failure is not first:
            what = f": {failure.message.split(chr(10), 1)[0]}" if failure.message else ""
            later = max(failure.time - first.time, 0)
            lines.append(f"rank {failure.rank}, {later:.3f} s later: {failure.ending()}{what}")
    return "\n".join(lines)


class ChildFailedError(Exception):
    """Ranks that a launcher started failed: what `distributed.run.run` raises for arguments of torchrun's.

    Args:
        name: the script.
        code: the launcher's exit code.
    """

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} failed: exit code {code}; what failed is said above")
        self.name, self.code = name, code
