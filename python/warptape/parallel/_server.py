"""One server of a parameter server: what it keeps, when it steps, to whom it replies."""

from __future__ import annotations

import atexit
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from warptape import core as wt

from .. import distributed as dist
from .._C import _distributed as _C
from ..core import Tensor
from ..nn import Parameter
from ..optim import Optimizer

PUSH, DONE = 0, 1  # what a request is


def flat_of(tensors: Sequence[Tensor]) -> Tensor:
    """Copies one after the other in one flat tensor on the CPU."""
    return wt.cat([t.detach().cpu().reshape(-1) for t in tensors])


def parts_of(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of which `flat` is made."""
    return [part.view(t.shape) for part, t in zip(flat.split([t.numel() for t in like]), like, strict=True)]


def load(parameters: Sequence[Parameter], flat: Tensor) -> None:
    """Takes what flat_of gave elsewhere."""
    with wt.no_grad():
        for parameter, part in zip(parameters, parts_of(flat, parameters), strict=True):
            parameter.copy_(part)


class Server:
    """Parameters, a thread that receives pushes, and one that sends replies. Requests and replies have groups
    of their own: a group's calls go in order, and a receive would hold up a reply. Two threads, because a
    large reply ends when its worker takes it, which may itself wait for a push that is to come here."""

    def __init__(self, parameters: list[Parameter], optimizer: Optimizer, bound: int | None) -> None:
        self.parameters, self.optimizer, self.bound = parameters, optimizer, bound
        self.version = 0  # synchronous, bounded: clocks applied; asynchronous: pushes applied
        self.clocks: dict[int, int] = {}  # worker that still trains -> pushes
        self.pending: dict[int, dict[int, list[Tensor | None]]] = {}  # clock -> worker -> gradients
        self.waiting: set[int] = set()  # workers on other ranks that have no reply to their push yet
        self.replies_due: SimpleQueue[tuple[int, list[Tensor]] | None] = SimpleQueue()  # None: no more
        self.staleness: Counter[int] = Counter()  # how old parameters were -> pushes
        self.received = self.sent = 0  # bytes of gradients and parameters
        self.changed = threading.Condition()
        self.failure: BaseException | None = None

    def start(self, requests: Any, replies: Any, workers: list[int], here: int) -> None:
        self.requests, self.replies, self.here = requests, replies, here
        self.clocks = dict.fromkeys(workers, 0)
        self.threads = [
            threading.Thread(target=self._run, args=(work,), name="parameter server", daemon=True)
            for work in (self._receive_all, self._send_all)
        ]
        for thread in self.threads:
            thread.start()
        atexit.register(self.abandon)  # a thread that waits in a call must not meet the interpreter's end

    def _run(self, work: Callable[[], None]) -> None:
        context = _C._Rank(1)  # modes of its own: an optimizer turns the tape off
        context.enter()
        try:
            work()
        except BaseException as error:
            self.fail(error)
        finally:
            context.leave()

    def _receive_all(self) -> None:
        remote = len(self.clocks.keys() - {self.here})
        while remote:
            remote -= self._receive()
        self.replies_due.put(None)

    def _send_all(self) -> None:
        while (due := self.replies_due.get()) is not None:
            worker, tensors = due
            for tensor in tensors:
                dist.send(tensor, group=self.replies, group_dst=worker)

    def _receive(self) -> bool:
        """Takes one request; whether it was a worker's last."""
        header = wt.empty(2 + len(self.parameters), dtype=wt.int64, device="cpu")
        worker = self.requests._ranks.index(dist.recv(header, group=self.requests))
        kind, version, *given = header.tolist()
        if kind == DONE:
            self.take(worker)
            return True
        count = sum(p.numel() for p in self.parameters)
        flat = wt.empty(count, dtype=self.parameters[0].dtype, device="cpu")
        dist.recv(flat, group=self.requests, group_src=worker)
        self.received += flat.numel() * flat.element_size()
        parts = zip(given, parts_of(flat, self.parameters), strict=True)
        self.take(worker, version, [part if has else None for has, part in parts])
        return False

    def fail(self, error: BaseException) -> None:
        """Ends the groups, so that nobody waits for this server."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()
        self.replies_due.put(None)
        for group in (self.requests, self.replies):
            group._abort(f"the parameter server failed: {type(error).__name__}: {error}")

    def abandon(self) -> None:
        self.fail(RuntimeError("its rank left without finish()"))
        self.join(5)

    def join(self, seconds: float | None = None) -> None:
        for thread in self.threads:
            thread.join(seconds)

    def take(self, worker: int, version: int = 0, gradients: list[Tensor | None] | None = None) -> None:
        """What a worker pushes: gradients computed from parameters of `version`, or that it is done."""
        try:
            with self.changed:
                if gradients is None:
                    del self.clocks[worker]
                else:
                    self._push(worker, version, gradients)
                while (ready := self.pending.get(self.version)) and self.clocks.keys() <= ready.keys():
                    self._apply([ready[each] for each in sorted(ready)])
                    del self.pending[self.version - 1]
                for each in sorted(filter(self.may_go_on, self.waiting)):
                    self._reply(each)
                self.changed.notify_all()
        except BaseException as error:
            self.fail(error)
            raise

    def _push(self, worker: int, version: int, gradients: list[Tensor | None]) -> None:
        clock = self.clocks[worker]
        self.clocks[worker] += 1
        self.staleness[(self.version if self.bound is None else clock) - version] += 1
        if self.bound is None:
            self._apply([gradients])
        else:
            self.pending.setdefault(clock, {})[worker] = gradients
        if worker != self.here:
            self.waiting.add(worker)

    def _apply(self, pushed: list[list[Tensor | None]]) -> None:
        """A step with the mean of what was pushed; a parameter to which nobody has a gradient gets none."""
        for parameter, column in zip(self.parameters, zip(*pushed, strict=True), strict=True):
            grads = [g for g in column if g is not None]
            parameter.grad = wt.stack(grads).sum(0) / len(pushed) if grads else None
        self.optimizer.step()
        self.version += 1

    def may_go_on(self, worker: int) -> bool:
        """Ho et al., section 2: at clock c a worker sees all updates of clocks before c - bound."""
        return self.bound is None or self.version >= self.clocks[worker] - self.bound

    def _reply(self, worker: int) -> None:
        self.waiting.remove(worker)
        header, flat = wt.tensor([self.version], device="cpu"), flat_of(self.parameters)
        self.sent += flat.numel() * flat.element_size()
        self.replies_due.put((worker, [header, flat]))

    def pull(self) -> tuple[int, Tensor]:
        """The reply to the worker on this rank. It is not waited for longer than the thread waits."""
        with self.changed:
            while self.failure is None and not self.may_go_on(self.here):
                self.changed.wait(1.0)
            if self.failure is not None:
                raise self.failure
            return self.version, flat_of(self.parameters)
