"""Who decides when the ranks of all nodes start, stop and end: node 0's launcher. The others obey.

Both kinds of node have one face: `next` waits for the next start or the end, `stop_wanted` says that the
running start is to be given up, `report` tells how it went here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..elastic.multiprocessing.errors import ProcessFailure, exit_code, root_cause
from . import rendezvous
from .arguments import Config
from .loop import Loop
from .rendezvous import Channel, RendezvousError, Stranger
from .workers import Start

_MAX_STRANGERS = 256  # connections without proof kept at a time; the oldest goes


@dataclass
class Report:
    """How one start went on one node."""

    failures: list[ProcessFailure] = field(default_factory=list)
    signal: int = 0  # the launcher there was told to end
    lost: str = ""  # the launcher there is gone or cannot start: why

    @property
    def good(self) -> bool:
        """True if every rank there ended by itself with exit code 0."""
        return not (self.failures or self.signal or self.lost)

    def to_json(self) -> dict[str, Any]:
        """Fields, for another launcher."""
        failures = [failure.to_json() for failure in self.failures]
        return {"failures": failures, "signal": self.signal, "lost": self.lost}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        """The report of which another launcher sent the fields."""
        failures = [ProcessFailure.from_json(item) for item in data["failures"]]
        return cls(failures, data["signal"], data["lost"])


@dataclass
class End:
    """The job is over."""

    code: int
    failures: list[ProcessFailure] = field(default_factory=list)
    reason: str = ""


class Node(Protocol):
    """This node's part in the agreement."""

    stop_wanted: bool

    def next(self) -> Start | End: ...  # noqa: D102

    def report(self, report: Report) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


@dataclass
class _Guest:
    """What the host knows of another node."""

    channel: Channel
    name: str  # its host
    node: int | None = None
    processes: int = 0


class Host:
    """Node 0: starts when all nodes are there, restarts all when one failed, ends when all are done."""

    def __init__(self, config: Config, loop: Loop, log: Any, listener: socket.socket | None = None) -> None:
        self.stop_wanted = False
        self._config, self._loop, self._log, self._listener = config, loop, log, listener
        self._job = secrets.token_hex(8)
        self._guests: dict[int, _Guest] = {}  # by node
        self._strangers: list[Stranger] = []
        self._refused = 0
        self._reports: dict[int, Report] = {}
        self._attempt = -1
        if listener is not None:
            listener.setblocking(False)
            loop.watch(listener, self._accept)

    # -- guests

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
            stranger = Stranger(connection, self._config.secret)
        except OSError:
            return
        if len(self._strangers) == _MAX_STRANGERS:
            self._part(self._strangers[0])
        self._strangers.append(stranger)
        self._loop.watch(stranger.socket, lambda: self._prove(stranger))

    def _part(self, stranger: Stranger, close: bool = True) -> None:
        self._strangers.remove(stranger)
        self._loop.unwatch(stranger.socket)
        if close:
            stranger.socket.close()

    def _prove(self, stranger: Stranger) -> None:
        known = stranger.read()
        if known is None:
            return
        self._part(stranger, close=not known)
        if known:
            guest = _Guest(Channel(stranger.socket), "")
            self._loop.watch(guest.channel.socket, lambda: self._hear(guest))
            return
        self._refused += 1
        if self._refused == 1:
            self._log(
                "a connection that does not know WARPTAPE_SECRET was refused; further ones are not shown"
            )

    def _hear(self, guest: _Guest) -> None:
        try:
            messages = guest.channel.receive()
            for message in messages or []:
                if message["kind"] == "join":
                    self._join(guest, message)
                elif message["kind"] == "report" and guest.node is not None:
                    self._take(guest.node, Report.from_json(message["report"]))
        except (ValueError, KeyError, TypeError) as error:  # proven, but of another version
            self._log(f"the launcher on {guest.name or 'a node'} sent what is not understood: {error!r}")
            messages = None
        if messages is None:
            self._drop(guest)

    def _drop(self, guest: _Guest) -> None:
        if guest.channel.closed:
            return
        self._loop.unwatch(guest.channel.socket)
        guest.channel.close()
        if guest.node is None:
            return
        if self._attempt < 0:  # it may come again
            del self._guests[guest.node]
        else:
            self._take(guest.node, Report(lost=f"the launcher of node {guest.node} ({guest.name}) is gone"))

    def _join(self, guest: _Guest, message: dict[str, Any]) -> None:
        guest.name, guest.processes = str(message["host"]), int(message["nproc"])
        node, refusal = message["node"], ""
        own = {"nnodes": self._config.nnodes, "run_id": self._config.run_id}
        for name, value in own.items():
            if message[name] != value:
                refusal = (
                    f"node 0 has {name} {value!r}, this node {message[name]!r}: give the same to all nodes"
                )
        if node is None:
            taken = self._guests.keys() | {0}
            node = min(set(range(self._config.nnodes)) - taken, default=self._config.nnodes)
        if self._attempt >= 0 or node >= self._config.nnodes:
            refusal = refusal or f"the job has its {self._config.nnodes} nodes already"
        elif node == 0 or node in self._guests:
            where = self._guests[node].name if node else socket.gethostname()
            refusal = refusal or f"node rank {node} is taken, by {where}: give each node its own --node-rank"
        if refusal:
            self._log(f"the launcher on {guest.name} was refused: {refusal}")
            self._send(guest, "end", code=1, failures=[], reason=refusal)
            self._drop(guest)
            return
        guest.node = node
        self._guests[node] = guest

    def _send(self, guest: _Guest, kind: str, **fields: Any) -> None:
        try:
            guest.channel.send(kind, **fields)
        except OSError:
            self._drop(guest)

    def _send_all(self, kind: str, **fields: Any) -> None:
        for guest in list(self._guests.values()):
            if not guest.channel.closed:
                self._send(guest, kind, **fields)

    # -- the agreement

    def _take(self, node: int, report: Report) -> None:
        if node in self._reports:
            return
        self._reports[node] = report
        if not report.good and not self.stop_wanted:
            self.stop_wanted = True
            self._send_all("stop")

    def report(self, report: Report) -> None:
        """Take this node's report."""
        self._take(0, report)

    def next(self) -> Start | End:
        """Wait for all nodes; decide."""
        if self._attempt < 0:
            end = self._gather()
        else:
            # After a second signal the other nodes are left to see that this one is gone.
            everybody = self._config.nnodes
            self._loop.wait(lambda: len(self._reports) == everybody or len(self._loop.signals) > 1)
            end = self._judge()
        if end is not None:
            failures = [failure.to_json() for failure in end.failures]
            self._send_all("end", code=end.code, failures=failures, reason=end.reason)
            return end
        return self._begin()

    def _gather(self) -> End | None:
        wanted, config = self._config.nnodes - 1, self._config
        self._loop.wait(lambda: len(self._guests) == wanted or bool(self._loop.signals), config.join_timeout)
        if self._loop.signals:
            return End(128 + self._loop.signals[0])
        if len(self._guests) == wanted:
            return None
        missing = sorted(set(range(1, config.nnodes)) - self._guests.keys())
        return End(
            1,
            reason=f"{len(self._guests) + 1} of {config.nnodes} nodes came within {config.join_timeout:g} s; "
            f"missing: node {', '.join(map(str, missing))}. Start warptape-run there with "
            f"--rdzv-endpoint={config.host}:{config.port} (--rdzv-conf=join_timeout=SECONDS waits longer)",
        )

    def _judge(self) -> End | None:
        reports = self._reports.values()
        failures = [failure for report in reports for failure in report.failures]
        for report in reports:
            if report.signal:
                return End(128 + report.signal, failures)
        for report in reports:
            if report.lost:
                return End(1, failures, report.lost)
        for node, guest in self._guests.items():
            if guest.channel.closed:
                return End(1, failures, f"the launcher of node {node} ({guest.name}) is gone")
        if not failures:
            return End(0)
        if self._attempt == self._config.max_restarts:
            return End(exit_code(root_cause(failures)), failures)
        self._send_all("again", failures=[failure.to_json() for failure in failures])
        self._log.failed(failures, f"restarting ({self._attempt + 1} of {self._config.max_restarts})")
        return None

    def _begin(self) -> Start:
        self._attempt += 1
        self._reports.clear()
        self.stop_wanted = False
        several = self._config.nnodes > 1
        port = None if several else self._config.port
        start = Start(
            attempt=self._attempt,
            node=0,
            processes=[self._config.nproc] + [self._guests[i].processes for i in sorted(self._guests)],
            job=self._job,
            master_addr=self._config.host,
            master_port=port or rendezvous.free_port(self._config.host),
            secret=rendezvous.worker_secret(self._config.secret, self._job) if several else "",
        )
        for node, guest in self._guests.items():
            self._send(guest, "start", **dataclasses.asdict(dataclasses.replace(start, node=node)))
        return start

    def close(self) -> None:
        """Close all connections."""
        for stranger in list(self._strangers):
            self._part(stranger)
        for guest in self._guests.values():
            guest.channel.close()
        if self._listener is not None:
            self._listener.close()


class Guest:
    """Any other node: does what node 0's launcher says."""

    def __init__(self, config: Config, loop: Loop, log: Any, channel: Channel) -> None:
        self.stop_wanted = False
        self._loop, self._log, self._channel = loop, log, channel
        self._orders: list[Start | End] = []
        loop.watch(channel.socket, self._hear)
        channel.send(
            "join",
            node=config.node_rank,
            nproc=config.nproc,
            nnodes=config.nnodes,
            run_id=config.run_id,
            host=socket.gethostname(),
        )

    def _hear(self) -> None:
        messages = self._channel.receive()
        if messages is None:
            self._loop.unwatch(self._channel.socket)
            self._orders.append(End(1, reason="the launcher of node 0 is gone"))
            self.stop_wanted = True
        for message in messages or []:
            kind = message.pop("kind")
            failures = [ProcessFailure.from_json(item) for item in message.get("failures", [])]
            if kind == "start":
                self.stop_wanted = False
                self._orders.append(Start(**message))
            elif kind == "stop":
                self.stop_wanted = True
            elif kind == "again":
                self._log.failed(failures, "restarting")
            elif kind == "end":
                self._orders.append(End(message["code"], failures, message["reason"]))

    def next(self) -> Start | End:
        """Wait for node 0's word; no more after a signal, which was reported."""
        self._loop.wait(lambda: bool(self._orders or self._loop.signals))
        if self._orders:
            return self._orders.pop(0)
        return End(128 + self._loop.signals[0])

    def report(self, report: Report) -> None:
        """Tell node 0 how it went here."""
        with contextlib.suppress(OSError):  # `_hear` notices
            self._channel.send("report", report=report.to_json())

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def meet(config: Config, loop: Loop, log: Any) -> Node:
    """Become node 0, or connect to it. Raises RendezvousError."""
    if config.nnodes == 1:
        return Host(config, loop, log)
    if len(config.secret) < 16:
        raise RendezvousError(
            'several nodes need a secret that they share: run `python -c "import secrets; '
            'print(secrets.token_hex(32))"` once, and set WARPTAPE_SECRET to what it prints on every node '
            f"(got {len(config.secret)} characters, 16 or more are needed)"
        )
    assert config.port is not None
    if config.node_rank == 0 or (config.node_rank is None and rendezvous.is_here(config.host)):
        try:
            return Host(config, loop, log, rendezvous.listen(config.host, config.port))
        except OSError as error:
            if config.node_rank == 0:
                raise RendezvousError(
                    f"node 0 cannot listen at port {config.port}: {error.strerror}. Another job has it, or "
                    "another node was started with --node-rank=0; choose the port with --rdzv-endpoint"
                ) from None
    return _find_host(config, loop, log)


def _find_host(config: Config, loop: Loop, log: Any) -> Guest:
    assert config.port is not None
    end = time.monotonic() + config.join_timeout
    while True:
        try:
            return Guest(config, loop, log, rendezvous.connect(config.host, config.port, config.secret))
        except OSError as error:
            last = error
        loop.wait(lambda: bool(loop.signals), 0.1)
        if loop.signals:
            raise RendezvousError(f"stopped while looking for node 0 at {config.host}:{config.port}")
        if time.monotonic() > end:
            raise RendezvousError(
                f"no launcher answers at {config.host}:{config.port} within {config.join_timeout:g} s "
                f"({last}): is node 0 started, and is the port open?"
            )
