"""What runs in a worker process of a DataLoader."""

from __future__ import annotations

import dataclasses
import pickle
import random
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.random  # before the fork: it is loaded late, and takes 10 ms in each worker

import warptape
from warptape.multiprocessing import _channel
from warptape.multiprocessing._lifetime import die_with_parent, set_process_name, watch_parent

from . import worker
from .fetch import fetcher
from .shared import Arena


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a worker is told at its start."""

    dataset: Any
    stream: bool
    batched: bool
    collate: Callable
    drop_last: bool
    base_seed: int
    init: Callable[[int], None] | None
    workers: int
    parent: int | None  # its process id, if its main thread starts the worker without a server in between

    def fetcher(self) -> Callable:
        """The function from indices to a batch; of a stream, from its start."""
        return fetcher(self.dataset, self.stream, self.batched, self.collate, self.drop_last)


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


def _seed_all(base_seed: int, number: int) -> int:
    """The seeds that PyTorch gives to a worker's generators."""
    seed = base_seed + number
    random.seed(seed)
    warptape.manual_seed(seed)
    np.random.seed(worker._generate_state(base_seed, number))  # noqa: NPY002
    return seed


class _Worker:
    """Takes tasks from the socket until its end: (epoch, task, what to fetch, the epoch's seed of pipes)."""

    def __init__(self, plan: Plan, number: int, end: socket.socket) -> None:
        self._plan, self._number, self._end = plan, number, end
        self._arena = worker.arena = Arena()
        self._fetch: Any = None
        self._epoch: int | None = None
        self._finished = False

    def _failure(self) -> Failure:
        return Failure(f"in DataLoader worker process {self._number}")

    def run(self) -> None:
        warptape.set_num_threads(1)
        seed = _seed_all(self._plan.base_seed, self._number)
        worker._worker_info = worker.WorkerInfo(self._number, self._plan.workers, seed, self._plan.dataset)
        failure = None
        try:
            if self._plan.init is not None:
                self._plan.init(self._number)
            self._fetch = self._plan.fetcher()
        except Exception:
            failure = self._failure()
        while (message := _channel.receive(self._end)) is not None:
            epoch, task, wanted = pickle.loads(message[0])
            if self._fetch and self._epoch not in (None, epoch):
                self._finished = False
                try:
                    self._fetch = self._plan.fetcher()
                except Exception:
                    failure, self._fetch = self._failure(), None
            self._epoch = epoch
            if self._finished:
                continue
            try:
                self._answer(task, failure or self._batch(wanted))
            except (BrokenPipeError, ConnectionResetError):
                return

    def _batch(self, wanted: Any) -> Any:
        """A batch, why there is none, or None at the end of the stream."""
        try:
            return (self._fetch(wanted),)
        except StopIteration:
            if not self._plan.stream:
                return self._failure()
            self._finished = True
            return None
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


def _interrupt(number: int, frame: Any) -> None:
    raise _Interrupted


def main(plan: Plan, number: int, end: socket.socket, others: list[socket.socket]) -> None:
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
