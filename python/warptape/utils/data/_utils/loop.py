"""What runs in a worker process of a DataLoader."""

from __future__ import annotations

import pickle
import signal
import socket
import sys
import traceback
from typing import Any

import numpy.random  # noqa: F401  (before the fork: it is loaded late, and takes 10 ms in each worker)

from warptape import core as wt
from warptape.multiprocessing import channel as _channel
from warptape.multiprocessing.lifetime import die_with_parent, set_process_name, watch_parent

from . import worker
from .share import Share, WorkerPlan
from .shared import Arena


class _KeyText(str):
    """The text of a KeyError, which would print its quoted form."""

    def __repr__(self) -> str:
        return str(self)


class Failure:
    """The exception in flight, as it travels to the main process."""

    def __init__(self, where: str) -> None:
        kind, error, trace = sys.exc_info()
        assert kind is not None
        self.where, self.name = where, kind.__name__
        self.text = "".join(traceback.format_exception(kind, error, trace))
        self.kind: Any = kind
        try:
            pickle.dumps(kind)
        except Exception:
            self.kind = None  # a class that only the worker knows

    def reraise(self) -> None:
        """Raises the exception's class with the worker's traceback as the message.

        Raises:
            RuntimeError: the class cannot be made of one text.
        """
        text: str = f"Caught {self.name} {self.where}.\nOriginal {self.text}"
        kind = self.kind
        if kind is None:
            raise RuntimeError(text)
        if issubclass(kind, KeyError):
            text = _KeyText(text)
        try:
            error = kind(message=text) if getattr(kind, "message", None) else kind(text)
        except Exception:
            raise RuntimeError(text) from None
        raise error


class _Worker:
    """Takes tasks from the socket until its end: ((epoch, what it is for the dataset), task, share, what to
    fetch)."""

    def __init__(self, plan: WorkerPlan, number: int, end: socket.socket) -> None:
        self._plan, self._number, self._end = plan, number, end
        self._arena = worker.arena = Arena()
        self._epoch: Any = None
        several = plan.places is not None and len(plan.places) != plan.workers
        mine = range(number, len(plan.places), plan.workers) if several and plan.places else [number]
        self._shares = {n: Share(plan, n, several) for n in mine}
        self._failures: dict[int, Failure] = {}

    def _failure(self) -> Failure:
        return Failure(f"in DataLoader worker process {self._number}")

    def _open(self, number: int, share: Share) -> None:
        try:
            share.open()
        except Exception:
            self._failures[number] = self._failure()

    def run(self) -> None:
        wt.set_num_threads(1)
        for number, share in self._shares.items():
            self._open(number, share)
        while (message := _channel.receive(self._end)) is not None:
            epoch, task, number, wanted = pickle.loads(message[0])
            if self._epoch not in (None, epoch):
                for n, share in self._shares.items():
                    if n not in self._failures:
                        share.see_epoch(epoch[1])
                        self._open(n, share)
            self._epoch = epoch
            if self._shares[number].finished:
                continue
            try:
                self._answer(task, self._failures.get(number) or self._batch(self._shares[number], wanted))
            except (BrokenPipeError, ConnectionResetError):
                return

    def _batch(self, share: Share, wanted: Any) -> Any:
        """A batch with the stream's state, why there is none, or None at the end of the stream."""
        try:
            return share.batch(wanted)
        except StopIteration:
            return None if share.finished else self._failure()
        except Exception:
            return self._failure()

    def _answer(self, task: int, batch: Any) -> None:
        try:
            data, files = self._arena.pack((self._epoch, task), batch)
        except Exception:  # what cannot be pickled
            self._arena.dropped()
            data, files = self._arena.pack((self._epoch, task), self._failure())
        _channel.send(self._end, data, files)
        self._arena.sent()


class _Interrupted(KeyboardInterrupt, SystemExit):
    """Ctrl-C, which reaches every process of the terminal; multiprocessing says nothing of a SystemExit."""


def _interrupt(number: int, frame: object) -> None:
    raise _Interrupted


def main(plan: WorkerPlan, number: int, end: socket.socket, others: list[socket.socket]) -> None:
    """The process. `others` are ends that it inherited and that are not its own."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    signal.signal(
        signal.SIGTERM, signal.SIG_DFL
    )  # whatever the main process does, from which it is inherited
    if plan.parent is not None:
        die_with_parent(plan.parent)
    else:
        watch_parent()
    for other in others:
        other.close()
    set_process_name("warptape-data")
    _Worker(plan, number, end).run()
