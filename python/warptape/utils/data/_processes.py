"""A pass over a loader by worker processes.

Each worker has a socket pair of its own, which carries tasks there and batches back. The main process waits
for messages and for the ends of processes at once, so that a worker that was killed is noticed without
waiting for a batch that will not come.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import multiprocessing
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import warnings
from collections import Counter, deque
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from warptape.multiprocessing import channel as _channel
from warptape.multiprocessing import init_reductions

from ._iterators import _BaseDataLoaderIter
from ._utils.loop import Failure, main
from ._utils.share import WorkerPlan, epoch_of
from ._utils.shared import Inbox

__all__: list[str] = []

_GRACE = 5.0  # seconds that workers have to end by themselves, PyTorch's


class _Process:
    """A worker, seen from the main process."""

    def __init__(self, process: Any, end: socket.socket) -> None:
        self.process, self.end = process, end
        self.inbox = Inbox()
        self.tasks: deque[bytes] = deque()  # not yet sent
        self.works = True  # takes tasks
        self.ending = False  # was told to end
        try:
            self.died = os.pidfd_open(process.pid)
        except OSError as error:
            if error.errno != errno.ENOSYS:  # a kernel before 5.3
                raise
            self.died = os.dup(process.sentinel)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self.process.pid

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Waits until the process has ended."""
        self.process.join(timeout)

    def flush(self) -> bool:
        """Sends tasks as far as there is room; whether all are sent. Waiting here, while the worker waits to
        send its batch, would have no end."""
        try:
            while self.tasks:
                _channel.send(self.end, self.tasks[0], flags=socket.MSG_DONTWAIT)
                self.tasks.popleft()
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self.tasks.clear()  # its end is noticed otherwise
        return True

    def finish(self) -> None:
        """Tells the worker to end, also when other processes inherited this socket."""
        self.works, self.ending = False, True
        with contextlib.suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)
        self.end.close()


def _start(context: Any, plan: WorkerPlan, number: int, running: list[_Process]) -> _Process:
    mine, its = _channel.pair()
    fork = context.get_start_method() == "fork"
    others = [mine, *(w.end for w in running)] if fork else []
    process = context.Process(target=main, args=(plan, number, its, others), daemon=True)
    # Python warns of the runtime's threads, of which a forked child starts its own. Where Python has others
    # it warns rightly, and filters, which are of all threads, are left alone.
    alone = fork and threading.active_count() == 1
    try:
        with warnings.catch_warnings() if alone else contextlib.nullcontext():
            if alone:
                warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
            process.start()
        return _Process(process, mine)
    except BaseException as error:
        mine.close()
        if process.pid is not None:
            process.kill()
            process.join()
            process.close()
        if isinstance(error, TypeError | AttributeError | pickle.PicklingError):
            warnings.warn(
                "Got pickle error when attempting to start a worker Process. Start methods other than 'fork' "
                "need a dataset, collate_fn and worker_init_fn that can be pickled.",
                stacklevel=5,
            )
        raise
    finally:
        its.close()


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    """Loads in worker processes, task by task in turn."""

    _owner = 0  # the process that may end the workers; forked children have copies of this object

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        init_reductions()
        self._prefetch = loader.prefetch_factor or 0
        self._in_order, self._timeout = loader.in_order, loader.timeout
        self._persistent = loader.persistent_workers
        self._workers: list[_Process] = []
        self._ready: dict[int, Any] = {}
        self._failed: Exception | None = None
        self._poll = select.poll()
        self._by_file: dict[int, _Process] = {}
        self._owner = os.getpid()
        self._epoch: tuple[int, Any] = (-1, None)
        self._seen = epoch_of(loader.dataset)  # the epoch that the workers' copies of the dataset know
        context: Any = loader.multiprocessing_context or multiprocessing.get_context()
        # The kernel's signal follows the thread that forks, and a fork server is a process in between.
        direct = (
            threading.current_thread() is threading.main_thread()
            and context.get_start_method() != "forkserver"
        )
        plan = WorkerPlan.of(loader, self._base_seed, self._owner if direct else None)
        try:
            for number in range(loader.num_workers):
                worker = _start(context, plan, number, self._workers)
                self._workers.append(worker)
                for file in (worker.end.fileno(), worker.died):
                    self._poll.register(file, select.POLLIN)
                    self._by_file[file] = worker
            self._reset(loader)
        except BaseException:
            self._shutdown_workers()
            raise

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Starts a pass. Of one that was left early, workers still make what they were told."""
        if self._epoch[0] >= 0:
            self._start(loader)
            self._progress.seed = self._base_seed
        elif self._progress.resumed is None:  # begun, but PyTorch asks samplers twice, too
            self._progress.draws_seed = False
            self._indices = self._progress.indices(loader)
        seen, self._seen = self._seen, epoch_of(loader.dataset)
        self._epoch = (self._epoch[0] + 1, self._seen if self._seen != seen else None)
        self._sent = self._next = 0  # numbers of tasks
        self._tasks: dict[int, int] = {}  # the shares of those not yet given to the caller
        self._ready.clear()
        shares = len(self._progress.taken) if loader._share_states else len(self._workers)
        self._counted = loader._share_states
        turn = self._progress.turn if self._counted else 0
        self._turn = itertools.cycle([*range(turn, shares), *range(turn)])
        self._open = set(range(shares))  # those that have more to give
        for worker in self._workers:
            worker.works = not worker.ending
        for _ in range(self._prefetch * len(self._workers)):
            self._put()

    # ---- tasks ----

    def _put(self) -> None:
        """Gives one more task to the worker whose turn it is."""
        try:
            wanted = next(self._indices)
        except StopIteration:
            return
        self._progress.asked += 1
        if not self._open:
            return
        share = next((n for n in self._turn if n in self._open), None) if self._in_order else self._idle()
        if share is None:
            return
        if self._progress.own_state:
            self._progress.note_entry(self._sent)
        worker = self._workers[share % len(self._workers)]
        task = (self._epoch, self._sent, share, wanted)
        worker.tasks.append(pickle.dumps(task, pickle.HIGHEST_PROTOCOL))
        self._tasks[self._sent] = share
        self._sent += 1
        self._flush(worker)

    def _idle(self) -> int | None:
        """The next in turn that has fewer tasks than its part of all."""
        most = self._prefetch * len(self._workers) // len(self._open)
        waiting = Counter(self._tasks.values())
        shares = max(len(self._workers), len(self._progress.taken) if self._counted else 0)
        return next(
            (n for n in itertools.islice(self._turn, shares) if n in self._open and waiting[n] < most), None
        )

    def _flush(self, worker: _Process) -> None:
        sent = worker.flush()
        if worker.end.fileno() in self._by_file:
            self._poll.modify(worker.end, select.POLLIN if sent else select.POLLIN | select.POLLOUT)

    # ---- batches ----

    def _next_data(self) -> Any:
        try:
            return self._next_batch()
        except KeyboardInterrupt:
            self._shutdown_workers()  # a notebook keeps the traceback, and by it this object
            raise

    def _next_batch(self) -> Any:
        if self._failed is not None:
            raise self._failed
        self._receive(0)
        while self._next < self._sent:
            number = self._next
            if not self._in_order and self._ready:
                number = next(iter(self._ready))
            if number in self._ready:
                return self._give(number)
            share = self._tasks.get(number)
            if share not in self._open:  # given already, or past the end of the worker's stream
                self._tasks.pop(number, None)
                self._next += 1
            else:
                self._wait()
        self._progress.finished = True
        if not self._persistent:
            self._shutdown_workers()
        raise StopIteration

    def _give(self, number: int) -> Any:
        share = self._tasks.pop(number)
        batch = self._ready.pop(number)
        self._put()
        self._progress.batches += 1
        if self._progress.own_state:
            self._progress.keep_state(number)
        if self._counted:
            self._progress.gave_of(share, batch[1] if isinstance(batch, tuple) else None)
        if isinstance(batch, Failure):
            batch.reraise()
        if isinstance(batch, Exception):
            raise batch
        return batch[0]

    def _wait(self) -> None:
        limit = self._timeout
        if not self._receive(limit if limit > 0 else None):
            raise RuntimeError(f"DataLoader timed out after {limit} seconds")

    def _receive(self, seconds: float | None) -> bool:
        """Takes what workers sent, waiting for the first of it; False if nothing came."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if end is None else max(0.0, end - time.monotonic()) * 1000
            events = self._poll.poll(left)
            if not events:
                return False
            came, dead = False, []
            for file, event in events:
                worker = self._by_file[file]
                if file == worker.died:
                    dead.append(worker)
                    continue
                if event & select.POLLOUT:
                    self._flush(worker)
                if event & ~select.POLLOUT:
                    came = self._take(worker) or came
            for worker in dead:
                self._reap(worker)
            if came:
                return True

    def _take(self, worker: _Process) -> bool:
        """Reads a message; whether it told of a task of this pass."""
        try:
            message = None if worker.ending else _channel.receive(worker.end)
        except OSError as error:  # of too many open files: the batch is lost
            self._failed = error
            self._shutdown_workers()
            raise
        if message is None:  # the process ends, which `died` tells
            self._forget(worker.end.fileno())
            return False
        (epoch, number), batch = worker.inbox.unpack(*message)
        if epoch != self._epoch:
            return False
        if batch is not None:
            self._ready[number] = batch
            return True
        self._open.discard(self._tasks.get(number, -1))  # its stream is at the end
        mine = range(self._workers.index(worker), len(self._progress.taken), len(self._workers))
        worker.works = any(n in self._open for n in mine)
        if not self._persistent and not worker.works:
            self._forget(worker.end.fileno())
            worker.finish()
        self._put()
        return True

    # ---- ends ----

    def _lives(self) -> bool:
        """Whether another pass can begin."""
        return bool(self._workers) and all(w.process.is_alive() for w in self._workers)

    def _forget(self, file: int) -> None:
        if self._by_file.pop(file, None):
            self._poll.unregister(file)

    def _reap(self, worker: _Process) -> None:
        self._forget(worker.died)
        if worker.ending:
            return
        limit = time.monotonic() + _GRACE
        while worker.process.is_alive() and time.monotonic() < limit:
            time.sleep(0.001)  # until a fork server has told the exit code
        code, pid = worker.process.exitcode or 0, worker.process.pid
        if code < 0:
            text = f"DataLoader worker (pid {pid}) is killed by signal: {signal.strsignal(-code)}. "
            if -code == signal.SIGBUS:
                text += "It is possible that dataloader's workers are out of shared memory. "
        else:
            text = (
                f"DataLoader worker (pid {pid}) exited unexpectedly with exit code {code}. Details are lost "
                "due to multiprocessing. Rerunning with num_workers=0 may give better error trace."
            )
        self._failed = RuntimeError(text)
        self._shutdown_workers()
        raise self._failed

    def _shutdown_workers(self) -> None:
        """Ends the workers: by themselves within 5 seconds, else by SIGTERM, at last by SIGKILL."""
        if self._owner != os.getpid():
            return
        self._owner = 0  # from here on there are no workers
        self._by_file.clear()
        self._ready.clear()
        for worker in self._workers:
            if not worker.ending:
                worker.finish()
        for end in (lambda process: None, BaseProcess.terminate, BaseProcess.kill):
            left = [w for w in self._workers if w.process.is_alive()]
            for worker in left:
                end(worker.process)
            deadline = time.monotonic() + _GRACE
            while left and connection.wait([w.died for w in left], max(0.0, deadline - time.monotonic())):
                left = [w for w in left if w.process.is_alive()]
        for worker in self._workers:
            os.close(worker.died)
        self._workers = []

    def __del__(self) -> None:
        if not sys.is_finalizing():  # else multiprocessing's exit ends the workers
            self._shutdown_workers()
