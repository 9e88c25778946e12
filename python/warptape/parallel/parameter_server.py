"""The parameter server of the textbooks, over send and recv of process groups.

Some ranks, the servers, keep the parameters; workers push gradients to them and pull parameters. Where the
servers are is the placement, when a worker may go on is the mode. `docs/guides/parameter_server.md` has
what it costs and why collectives won; for work, use DistributedDataParallel or fully_shard.

Asynchronous: J. Dean et al., "Large Scale Distributed Deep Networks" (2012), section 4.1 (Downpour SGD).
Bounded: Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel
Parameter Server" (2013).
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from warptape import core as wt

from .. import distributed as dist
from ..core import Tensor
from ..distributed.state import Group, resolve
from ..nn import Module, Parameter
from ..optim import Optimizer
from ._server import DONE, PUSH, Server, flat_of, load

MODES, PLACEMENTS = ("synchronous", "asynchronous", "bounded"), ("host", "rank0", "sharded")
MakeOptimizer = Callable[[list[Parameter]], Optimizer]


def _check(module: Any, placement: Any, mode: Any, staleness: Any, n: int) -> None:
    if not isinstance(module, Module):
        raise TypeError(f"ParameterServer: expected a Module, got {type(module).__name__}")
    if placement not in PLACEMENTS:
        raise ValueError(f"ParameterServer: expected a placement of {PLACEMENTS}, got {placement!r}")
    if mode not in MODES:
        raise ValueError(f"ParameterServer: expected a mode of {MODES}, got {mode!r}")
    if type(staleness) is not int:
        raise TypeError(f"ParameterServer: expected staleness as int, got {type(staleness).__name__}")
    if staleness < 0 or (staleness and mode != "bounded"):
        got = f"staleness={staleness} in mode {mode!r}"
        raise ValueError(f"ParameterServer: {got}; expected 0, or more with 'bounded'")
    if placement == "host" and n < 2:
        raise ValueError("ParameterServer: 'host' needs 2 ranks, a host and a worker; got 1: use 'rank0'")
    dtypes = sorted({str(p.dtype) for p in module.parameters() if p.requires_grad})
    if len(dtypes) != 1:
        raise ValueError(f"ParameterServer: expected parameters of one dtype, got {dtypes or 'none'}")


class ParameterServer:
    """Trains a module with parameters on servers. Collective: every rank of the group makes it, with the same
    arguments; the module takes the values of the first server.

    Args:
        module: the model; what is trained are its parameters that need gradients, of one floating dtype.
        make_optimizer: called on each server with a list of its parameters, CPU copies of the module's, whole
            ones; returns the optimizer of these.
        placement: "host": rank 0 has the parameters and does not train; "rank0": it does both; "sharded":
            every rank has some, balanced by elements.
        mode: "synchronous": steps are with the mean of all workers' gradients, as in one process; "bounded":
            so too, but a worker may be `staleness` steps ahead of its parameters; "asynchronous": each push
            is a step at once.
        process_group: the ranks; None for all.
        timeout: how long a server waits for a push, and a worker for its parameters; None for the job's.

    Each worker calls `step()` after backward(), any number of times, and every rank `finish()` at the end, a
    host at once. Buffers, as of BatchNorm, stay each rank's own.

    Raises: TypeError, ValueError on every rank, before any parameter is sent, for bad arguments on any and
    for ranks that differ. DistBackendError, as of every group, when a rank dies, is late or its server fails.
    """

    def __init__(
        self,
        module: Module,
        make_optimizer: MakeOptimizer,
        *,
        placement: str = "host",
        mode: str = "synchronous",
        staleness: int = 0,
        process_group: Group = None,
        timeout: timedelta | None = None,
    ) -> None:
        self.group = resolve(process_group)
        self.rank, n = self.group.rank(), self.group.size()
        self.server: Server | None = None  # of this rank
        self._finished, settings, error = False, "", None
        try:
            _check(module, placement, mode, staleness, n)
            self._lay_out(module, placement, n)
            named = [
                f"{name} {p.dtype} {list(p.shape)}" + " frozen" * (not p.requires_grad)
                for name, p in module.named_parameters()
            ]
            settings = ", ".join([placement, mode, f"staleness {staleness}", *named])
            if self.rank in self.servers:
                self._make_server(make_optimizer, None if mode == "asynchronous" else staleness)
        except Exception as raised:
            error = raised
        self._agree(settings, error)
        ranks = dist.get_process_group_ranks(self.group)
        own = len(self.servers)
        groups = [dist.new_group(ranks, timeout, use_local_synchronization=True) for _ in range(2 * own)]
        for group in groups:
            dist.barrier(group=group)  # whose ranks have not met, they are not told of a failure
        self._groups, self._requests, self._replies = groups, groups[:own], groups[own:]
        self._versions = [0] * own
        first = flat_of(parameters := [p for owned in self._owned for p in owned])
        dist.broadcast(first, group=self.group, group_src=0)
        load(parameters, first)
        if self.server is not None:
            load(self.server.parameters, flat_of(self._owned[self.rank]))
            self.server.start(groups[self.rank], groups[own + self.rank], self.workers, self.rank)

    def _lay_out(self, module: Module, placement: str, n: int) -> None:
        """Which parameters are on which server: the largest first, each to the server that has least."""
        parameters = [p for p in module.parameters() if p.requires_grad]
        self.servers = list(range(min(n, len(parameters)) if placement == "sharded" else 1))
        self.workers = list(range(1 if placement == "host" else 0, n))
        self._owned: list[list[Parameter]] = [[] for _ in self.servers]
        for parameter in sorted(parameters, key=lambda p: -p.numel()):
            min(self._owned, key=lambda owned: (sum(p.numel() for p in owned), len(owned))).append(parameter)

    def _make_server(self, make_optimizer: MakeOptimizer, bound: int | None) -> None:
        copies = [Parameter(p.detach().cpu().clone()) for p in self._owned[self.rank]]
        optimizer = make_optimizer(copies)
        if not isinstance(optimizer, Optimizer):
            got = type(optimizer).__name__
            raise TypeError(f"ParameterServer: make_optimizer returned {got}, not an Optimizer")
        held = sorted(id(p) for group in optimizer.param_groups for p in group["params"])
        if held != sorted(map(id, copies)):
            raise ValueError("ParameterServer: the optimizer must have what it is given, all of them")
        self.server = Server(copies, optimizer, bound)

    def _agree(self, settings: str, error: Exception | None) -> None:
        """Raises on every rank what any has to say; costs one small collective."""
        gathered: list[Any] = [None] * self.group.size()
        said = None if error is None else [type(error).__name__, str(error)]
        dist.all_gather_object(gathered, [settings, said], group=self.group)
        if error is not None:
            raise error
        kinds = {"TypeError": TypeError, "ValueError": ValueError}
        for rank, said in [(rank, said) for rank, (_, said) in enumerate(gathered) if said]:
            raise kinds.get(said[0], RuntimeError)(f"on rank {rank}: {said[1]}")
        for rank, (other, _) in enumerate(gathered):
            if other != gathered[0][0]:
                raise ValueError(f"ParameterServer: ranks differ: 0 has {gathered[0][0]}; {rank} has {other}")

    def step(self) -> None:
        """Pushes the gradients of the module's parameters, waits as the mode says, and pulls parameters into
        the module. Gradients stay: call zero_grad() as usual. Raises RuntimeError on a host and after
        finish()."""
        if self._finished or self.rank not in self.workers:
            why = "after finish()" if self._finished else "on the host, which only serves: call finish()"
            raise RuntimeError(f"ParameterServer.step: called {why}")
        try:
            self._exchange()
        except BaseException as error:  # other servers may wait for what this rank did not push
            for group in self._groups:
                group._abort(f"rank {self.rank}: {error}")
            raise

    def _exchange(self) -> None:
        """Every push before any reply, with servers in one order on all ranks: so there is no deadlock."""
        for i, owned in enumerate(self._owned):
            if i == self.rank:
                continue
            has_grad = [int(p.grad is not None) for p in owned]
            self._send(i, wt.tensor([PUSH, self._versions[i], *has_grad], device="cpu"))
            self._send(i, flat_of([wt.zeros_like(p) if p.grad is None else p.grad for p in owned]))
        if self.server is not None:
            copies = [None if p.grad is None else p.grad.cpu().clone() for p in self._owned[self.rank]]
            self.server.take(self.rank, self._versions[self.rank], copies)
        for i, owned in enumerate(self._owned):
            if i == self.rank and self.server is not None:
                self._versions[i], flat = self.server.pull()
            else:
                version, flat = wt.zeros(1, dtype=wt.int64, device="cpu"), flat_of(owned)
                for tensor in (version, flat):
                    dist.recv(tensor, group=self._replies[i], group_src=i)
                self._versions[i] = int(version.item())
            load(owned, flat)

    def _send(self, i: int, tensor: Tensor) -> None:
        dist.send(tensor, group=self._requests[i], group_dst=i)

    def finish(self) -> dict[str, Any]:
        """Says that this rank pushes no more, and serves until no worker does; then every rank has the last
        parameters. Collective. A second call does nothing.

        Returns: of this rank's server: "version", its steps; "staleness", how old parameters of a push were
            (in steps) -> pushes; "received" and "sent", bytes from and to other ranks. Zeros without one.
        """
        if not self._finished:
            self._finished = True
            self._leave()
        if self.server is None:
            return {"version": 0, "staleness": {}, "received": 0, "sent": 0}
        counted = {name: getattr(self.server, name) for name in ("version", "received", "sent")}
        return {**counted, "staleness": dict(self.server.staleness)}

    def _leave(self) -> None:
        here = self.server
        if self.rank in self.workers:
            for i, owned in enumerate(self._owned):
                if i != self.rank:
                    self._send(i, wt.tensor([DONE] + [0] * (1 + len(owned)), device="cpu"))
        if here is not None:
            if self.rank in self.workers:
                here.take(self.rank)
            here.join()
            atexit.unregister(here.abandon)
            if here.failure is not None:
                raise here.failure
        dist.barrier(group=self.group)
        for i, owned in enumerate(self._owned):
            last = flat_of(here.parameters if here is not None and i == self.rank else owned)
            dist.broadcast(last, group=self.group, group_src=i)
            load(owned, last)
        for group in self._groups:
            dist.destroy_process_group(group)
