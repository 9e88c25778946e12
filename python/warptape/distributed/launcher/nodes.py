"""Who decides when the ranks of all nodes start, stop and end: node 0's launcher. The others obey.

Node 0 starts the ranks when the nodes are there: all of them, or at least `min_nodes` and whoever comes
within the last call. A rank that fails ends the start, and where the job is dynamic a node that is lost,
leaves or joins: all ranks are stopped, every node reports, and the nodes that are there then start anew.

Both kinds of node have one face: `next` waits for the next start or the end, `stop_wanted` says that the
running start is to be given up, `report` tells how it went here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import rendezvous
from .arguments import Config
from .errors import ChildFailedError, ProcessFailure, exit_code, root_cause
from .loop import Loop
from .rendezvous import Channel, RendezvousConnectionError, RendezvousError, UnauthenticatedPeer
from .workers import Start

_MOST_PROCESSES = 1 << 16
_MAX_UNAUTHENTICATED = 256  # connections without proof kept at a time; the oldest goes


@dataclass
class StartReport:
    """How one start went on one node.

    Args:
        failures: of this node's ranks.
        done: whether all ranks ended with exit code 0.
        signal: that stopped the launcher; 0 for none.
        lost: why the connection is gone.
    """

    failures: list[ProcessFailure] = field(default_factory=list)
    done: bool = False  # every rank there ended by itself with exit code 0
    signal: int = 0  # the launcher there was told to end
    lost: str = ""  # the launcher there is gone or cannot start: why

    @property
    def good(self) -> bool:
        """True if nothing went wrong there; but if not `done`, its ranks were stopped."""
        return not (self.failures or self.signal or self.lost)

    def to_json(self) -> dict[str, Any]:
        """Fields, for another launcher."""
        failures = [failure.to_json() for failure in self.failures]
        return vars(self) | {"failures": failures}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StartReport:
        """The report of which another launcher sent the fields. Raises TypeError, KeyError.

        Args:
            data: what `to_json` gave.
        """
        failures = [ProcessFailure.from_json(item) for item in data["failures"]]
        out = cls(**data | {"failures": failures})
        if not (type(out.done) is bool and type(out.signal) is int and isinstance(out.lost, str)):
            raise TypeError("a report has fields of other types")
        return out


@dataclass
class End:
    """The job is over.

    Args:
        code: of the launcher's exit.
        failures: of all nodes.
        reason, error: in words.
    """

    code: int
    failures: list[ProcessFailure] = field(default_factory=list)
    reason: str = ""
    error: str = ""  # which of rendezvous' errors it is, if one

    def raise_error(self, name: str) -> None:
        """Raise what a job called from Python ended with, if it did not end well; `name` is the program's.

        Raises: RendezvousError, ChildFailedError.
        """
        if self.error:
            raise getattr(rendezvous, self.error)(self.reason)
        if self.code:
            raise ChildFailedError(name, self.code)


class NodeLauncher(Protocol):
    """This node's part in the agreement."""

    stop_wanted: bool

    def next(self) -> Start | End: ...  # noqa: D102

    def report(self, report: StartReport) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


@dataclass
class _Guest:
    """What the host knows of another node."""

    channel: Channel
    name: str  # its host
    node: int | None = None  # its rank, if it has joined and has one
    processes: int = 0


class Host:
    """Node 0: starts when the nodes are there, restarts all when one failed, ends when all are done.

    Args:
        config: of the command line.
        loop: where events come from.
        log: takes a line of text.
        listener: an open socket; None makes one.
    """

    def __init__(self, config: Config, loop: Loop, log: Any, listener: socket.socket | None = None) -> None:
        self.stop_wanted = False
        self._config, self._loop, self._log, self._listener = config, loop, log, listener
        self._job = secrets.token_hex(8)
        self._guests: list[_Guest] = []  # who has joined and is there, in order of rank or arrival
        self._members: dict[int, _Guest] = {}  # the other nodes of this start
        self._unauthenticated: list[UnauthenticatedPeer] = []
        self._refused = 0
        self._reports: dict[int, StartReport] = {}
        self._joined = ""  # who ended this start by joining
        self._attempt, self._restarts = -1, 0
        if listener is not None:
            listener.setblocking(False)
            loop.watch(listener, self._accept)

    # -- guests

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
            peer = UnauthenticatedPeer(connection, self._config.secret)
        except OSError:
            return
        if len(self._unauthenticated) == _MAX_UNAUTHENTICATED:
            self._part(self._unauthenticated[0])
        self._unauthenticated.append(peer)
        self._loop.watch(peer.socket, lambda: self._prove(peer))

    def _part(self, peer: UnauthenticatedPeer, close: bool = True) -> None:
        self._unauthenticated.remove(peer)
        self._loop.unwatch(peer.socket)
        if close:
            peer.socket.close()

    def _prove(self, peer: UnauthenticatedPeer) -> None:
        known = peer.read()
        if known is None:
            return
        self._part(peer, close=not known)
        if known:
            guest = _Guest(Channel(peer.socket, self._config.keep_alive), "")
            self._loop.watch(guest.channel.socket, lambda: self._receive(guest))
            return
        self._refused += 1
        if self._refused == 1:
            self._log(
                "a connection that does not know WARPTAPE_SECRET was refused; further ones are not shown"
            )

    def _receive(self, guest: _Guest) -> None:
        try:
            messages = guest.channel.receive()
            for message in messages or []:
                if message["kind"] == "join":
                    self._join(guest, message)
                elif message["kind"] == "report" and guest.node is not None:
                    self._take(guest.node, StartReport.from_json(message["report"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # proven, but of another version
            self._log(f"the launcher on {guest.name or 'a node'} sent what is not understood: {error!r}")
            messages = None
        if messages is None:
            self._drop(guest)

    def _drop(self, guest: _Guest) -> None:
        if guest.channel.closed:
            return
        self._loop.unwatch(guest.channel.socket)
        guest.channel.close()
        if guest in self._guests:
            self._guests.remove(guest)
        if guest.node is not None and self._members.get(guest.node) is guest:
            self._take(
                guest.node, StartReport(lost=f"the launcher of node {guest.node} ({guest.name}) is gone")
            )

    def _join(self, guest: _Guest, message: dict[str, Any]) -> None:
        guest.name, guest.processes = str(message["host"]), int(message["nproc"])
        if not 0 < guest.processes < _MOST_PROCESSES:
            raise ValueError(f"nproc is {guest.processes}")
        refusal = ""
        for name, value in _same_on_all(self._config).items():
            if message[name] != value:
                refusal = (
                    f"node 0 has {name} {value!r}, this node {message[name]!r}: give the same to all nodes"
                )
        refusal = refusal or ("" if self._config.dynamic else self._refusal(guest, message["node"]))
        if refusal:
            self._log(f"the launcher on {guest.name} was refused: {refusal}")
            self._send(guest, "end", code=1, failures=[], reason=refusal, error="RendezvousError")
            self._drop(guest)
            return
        self._guests.append(guest)
        if not self._config.dynamic:
            self._guests.sort(key=lambda other: other.node or 0)
        elif len(self._members) + 1 == self._config.nnodes:
            reason = f"the job has its {self._config.nnodes} nodes; this one waits for a place"
            self._send(guest, "wait", reason=reason)
        elif self._attempt >= 0 and not self.stop_wanted and not self._reports:  # else the job is at its end
            self._joined = guest.name
            self._stop()

    def _refusal(self, guest: _Guest, node: int | None) -> str:
        """Give the guest its rank for the whole job; why it can have none."""
        taken = {other.node: other.name for other in self._guests} | {0: socket.gethostname()}
        if node is None:
            node = min(set(range(self._config.nnodes)) - taken.keys(), default=self._config.nnodes)
        if self._attempt >= 0 or node >= self._config.nnodes:
            return f"the job has its {self._config.nnodes} nodes already"
        if node in taken:
            return f"node rank {node} is taken, by {taken[node]}: give each node its own --node-rank"
        guest.node = node
        return ""

    def _send(self, guest: _Guest, kind: str, **fields: Any) -> None:
        try:
            guest.channel.send(kind, **fields)
        except OSError:
            self._drop(guest)

    def _send_all(self, guests: Iterable[_Guest], kind: str, **fields: Any) -> None:
        for guest in list(guests):
            if not guest.channel.closed:
                self._send(guest, kind, **fields)

    # -- the agreement

    def _stop(self) -> None:
        self.stop_wanted = True
        self._send_all(self._members.values(), "stop")

    def _take(self, node: int, report: StartReport) -> None:
        if node in self._reports:
            return
        self._reports[node] = report
        if not report.good and not self.stop_wanted:
            self._stop()

    def report(self, report: StartReport) -> None:
        """Take this node's report.

        Args:
            report: how the start went here.
        """
        self._take(0, report)

    def next(self) -> Start | End:
        """Wait for the nodes; decide."""
        end = None
        if self._attempt >= 0:
            # After a second signal the other nodes are left to see that this one is gone.
            everybody = len(self._members) + 1
            self._loop.wait(lambda: len(self._reports) == everybody or len(self._loop.signals) > 1)
            end = self._judge()
        self._members = {}
        if end is None and (self._attempt < 0 or self._config.dynamic):
            end = self._gather()
        if end is not None:
            failures = [failure.to_json() for failure in end.failures]
            self._send_all(self._guests, "end", **dataclasses.asdict(end) | {"failures": failures})
            return end
        return self._begin()

    def _gather(self) -> End | None:
        config, begin = self._config, time.monotonic()
        fewest, most = config.min_nodes - 1, config.nnodes - 1
        while True:
            left = max(0.0, begin + config.join_timeout - time.monotonic())
            self._loop.wait(lambda: len(self._guests) >= fewest or bool(self._loop.signals), left)
            if len(self._guests) < fewest and not self._loop.signals:
                return self._too_few()
            self._loop.wait(
                lambda: not fewest <= len(self._guests) < most or bool(self._loop.signals), config.last_call
            )
            if self._loop.signals:
                return End(128 + self._loop.signals[0])
            if len(self._guests) >= fewest:  # else some left during the last call
                return None

    def _too_few(self) -> End:
        config, here = self._config, len(self._guests) + 1
        missing = ""
        if not config.dynamic:
            ranks = set(range(1, config.nnodes)) - {guest.node for guest in self._guests}
            missing = f"; missing: node {', '.join(map(str, sorted(ranks)))}"
        came = "came" if self._attempt < 0 else "were left, and no more came,"
        return End(
            2,
            reason=f"{here} of {config.min_nodes} nodes {came} within {config.join_timeout:g} s{missing}. "
            f"Start warptape-run there with --rdzv-endpoint={config.host}:{config.port} "
            "(--rdzv-conf=join_timeout=SECONDS waits longer)",
            error="RendezvousTimeoutError",
        )

    def _judge(self) -> End | None:
        """After all reports: the end of the job, or None for another start."""
        config, failures, left = self._config, [], ""
        for node, report in self._reports.items():
            failures += report.failures
            if report.signal and (node == 0 or config.min_nodes == config.nnodes):
                return End(128 + report.signal, failures)
            if report.signal:
                left = f"node {node} ({self._members[node].name}) leaves"
        lost = ""
        for node, report in self._reports.items():
            gone = node in self._members and self._members[node].channel.closed
            if report.lost and not (gone and config.dynamic):
                return End(1, failures, report.lost)
            lost = lost or report.lost
            if gone and not config.dynamic:
                return End(1, failures, f"the launcher of node {node} ({self._members[node].name}) is gone")
        if all(report.done for report in self._reports.values()):
            return End(0)
        changed = left or (self._joined and f"the launcher on {self._joined} joins")
        if lost or not changed:  # else what failed is the ranks' answer to a change
            if self._restarts == config.max_restarts:
                return End(exit_code(root_cause(failures)) if failures and not lost else 1, failures, lost)
            self._restarts += 1
            changed = f"{lost}; " * bool(lost) + f"restarting ({self._restarts} of {config.max_restarts})"
        self._log.failed(failures, changed)
        shown = [failure.to_json() for failure in failures]
        self._send_all(self._guests, "again", failures=shown, reason=changed)
        return None

    def _begin(self) -> Start:
        self._attempt += 1
        self._reports.clear()
        self._joined = ""
        self.stop_wanted = False
        several = self._config.nnodes > 1
        port = None if several else self._config.port
        guests = self._guests[: self._config.nnodes - 1]
        start = Start(
            attempt=self._attempt,
            restarts=self._restarts,
            node=0,
            processes=[self._config.nproc] + [guest.processes for guest in guests],
            job=self._job,
            master_addr=self._config.host,
            master_port=port or rendezvous.free_port(self._config.host),
            secret=rendezvous.worker_secret(self._config.secret, self._job) if several else "",
        )
        self._members = dict(enumerate(guests, start=1))
        for node, guest in self._members.items():
            guest.node = node
            self._send(guest, "start", **dataclasses.asdict(dataclasses.replace(start, node=node)))
        if self._config.dynamic:
            self._log(f"start {self._attempt}: {len(guests) + 1} nodes, {sum(start.processes)} ranks")
        return start

    def close(self) -> None:
        """Close all connections."""
        for peer in list(self._unauthenticated):
            self._part(peer)
        for guest in self._guests:
            guest.channel.close()
        if self._listener is not None:
            self._listener.close()


class Guest:
    """Any other node: does what node 0's launcher says.

    Args:
        config: of the command line.
        loop: where events come from.
        log: takes a line of text.
        channel: to node 0.
    """

    def __init__(self, config: Config, loop: Loop, log: Any, channel: Channel) -> None:
        self.stop_wanted = False
        self._loop, self._log, self._channel = loop, log, channel
        self._where = f"{config.host}:{config.port}"
        self._orders: list[Start | End] = []
        loop.watch(channel.socket, self._receive)
        channel.send(
            "join",
            node=config.node_rank,
            nproc=config.nproc,
            host=socket.gethostname(),
            **_same_on_all(config),
        )

    def _receive(self) -> None:
        try:
            messages = self._channel.receive()
            for message in messages or []:
                self._obey(message)
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # proven, but of another version
            self._log(f"the launcher of node 0 sent what is not understood: {error!r}")
            messages = None
        if messages is None:
            self._loop.unwatch(self._channel.socket)
            reason = (
                f"the launcher of node 0 at {self._where} is gone, and with it the place where the nodes "
                "meet: the job ends. Start it again on all nodes; it goes on from its last checkpoint"
            )
            self._orders.append(End(1, reason=reason, error="RendezvousConnectionError"))
            self.stop_wanted = True

    def _obey(self, message: dict[str, Any]) -> None:
        kind = message.pop("kind")
        failures = [ProcessFailure.from_json(item) for item in message.get("failures", [])]
        if kind == "start":
            self.stop_wanted = False
            self._orders.append(Start(**message))
        elif kind == "stop":
            self.stop_wanted = True
        elif kind == "again":
            self._log.failed(failures, message["reason"])
        elif kind == "wait":
            self._log(message["reason"])
        elif kind == "end":
            self._orders.append(End(**message | {"failures": failures}))

    def next(self) -> Start | End:
        """Wait for node 0's word; no more after a signal, which was reported."""
        self._loop.wait(lambda: bool(self._orders or self._loop.signals))
        if self._orders:
            return self._orders.pop(0)
        return End(128 + self._loop.signals[0])

    def report(self, report: StartReport) -> None:
        """Tell node 0 how it went here.

        Args:
            report: how the start went here.
        """
        with contextlib.suppress(OSError):  # `_hear` notices
            self._channel.send("report", report=report.to_json())

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def meet(config: Config, loop: Loop, log: Any) -> NodeLauncher:
    """Become node 0, or connect to it. Raises RendezvousError.

    Args:
        config: of the command line.
        loop: where events come from.
        log: takes a line of text.
    """
    if config.nnodes == 1:
        return Host(config, loop, log)
    if len(config.secret) < 16:
        raise RendezvousError(
            'several nodes need a secret that they share: run `python -c "import secrets; '
            'print(secrets.token_hex(32))"` once, and set WARPTAPE_SECRET to what it prints on every node '
            f"(got {len(config.secret)} characters, 16 or more are needed)"
        )
    assert config.port is not None
    where, end = f"{config.host}:{config.port}", time.monotonic() + config.join_timeout
    while True:
        # Asked again and again: a name service may learn only by and by that the name is this machine's.
        if config.node_rank == 0 or (config.node_rank is None and _may_host(config)):
            try:
                return Host(config, loop, log, rendezvous.listen(config.host, config.port))
            except OSError as error:
                if config.node_rank == 0 or config.is_host:
                    raise RendezvousError(
                        f"node 0 cannot listen at port {config.port}: {error.strerror}. Another job has it, "
                        "or another node was started as node 0; choose the port with --rdzv-endpoint"
                    ) from None
        try:
            channel = rendezvous.connect(config.host, config.port, config.secret, config.keep_alive)
            return Guest(config, loop, log, channel)
        except OSError as error:
            last = error
        loop.wait(lambda: bool(loop.signals), 0.1)
        if loop.signals:
            raise RendezvousError(f"stopped while looking for node 0 at {where}")
        if time.monotonic() > end:
            raise RendezvousConnectionError(
                f"no launcher answers at {where} within {config.join_timeout:g} s ({last}): is node 0 "
                "started, and is the port open?"
            )


def _may_host(config: Config) -> bool:
    return rendezvous.is_here(config.host) if config.is_host is None else config.is_host


def _same_on_all(config: Config) -> dict[str, str]:
    """What every node must have been given alike."""
    fixed = config.min_nodes == config.nnodes
    nnodes = str(config.nnodes) if fixed else f"{config.min_nodes}:{config.nnodes}"
    return {"nnodes": nnodes, "run_id": config.run_id}
