"""All-reduce as textbooks have it, over send and recv: to read, to count and to draw.

Three algorithms that leave the sum of all ranks' tensors on every rank, each a function that works in place
and returns the `Trace` of what this rank did. `docs/explanation/collectives.md` explains them with a
picture made by this code. For work, use `warptape.distributed.all_reduce`.

What they cost is said by the model of R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective
Communication Operations in MPICH" (2005), section 3: a message of m bytes takes alpha + m * beta seconds,
adding takes gamma seconds a byte, and a rank sends one message and receives one at a time. `predict` is that
model.

Legend: n ranks; N elements in a tensor; p the largest power of two that is not above n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from warptape import core as wt

from ...core import Tensor
from .. import collectives
from ..state import Group, resolve

Span = tuple[int, int]  # of elements: from, to
Watch = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Move:
    """A message: elements that a rank sends to another, which adds them to its own or takes them instead.

    Args:
        step: when it was sent, from 0.
        source, destination: ranks.
        span: begin and end of the elements.
        bytes: how much was sent.
        adds: whether the receiver adds the elements.
    """

    step: int  # from 1
    source: int
    destination: int
    span: Span
    bytes: int
    adds: bool


@dataclass
class Trace:
    """What one rank did: how many steps there were, and what it sent and received in them.

    Args:
        rank, size: of this rank and of the group.
        steps: how many there were.
        sent, received: this rank's messages.
    """

    rank: int
    size: int
    steps: int = 0
    sent: list[Move] = field(default_factory=list)
    received: list[Move] = field(default_factory=list)

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank sent in all steps."""
        return sum(move.bytes for move in self.sent)

    @property
    def bytes_received(self) -> int:
        """Bytes that this rank received in all steps."""
        return sum(move.bytes for move in self.received)

    @property
    def bytes_by_link(self) -> dict[int, int]:
        """Bytes sent to each rank."""
        out: dict[int, int] = {}
        for move in self.sent:
            out[move.destination] = out.get(move.destination, 0) + move.bytes
        return out


class _Line:
    """One rank's side of an algorithm: sends and receives parts of a flat tensor, and records what it did.

    Every rank calls `step` as often as the others, idle or not.
    """

    def __init__(self, tensor: Tensor, group: Group, watch: Watch | None) -> None:
        pg = resolve(group)
        self.rank, self.size, self.group = pg.rank(), pg.size(), group
        self.flat = tensor.detach().reshape(-1)  # a copy where the tensor is not contiguous
        self.trace = Trace(self.rank, self.size)
        self.watch = watch
        self._show()

    def _show(self) -> None:
        if self.watch is not None:
            self.watch(self.trace.steps, self.flat.clone())

    def _move(self, source: int, destination: int, span: Span, adds: bool) -> Move:
        nbytes = (span[1] - span[0]) * self.flat.element_size()
        return Move(self.trace.steps, source, destination, span, nbytes, adds)

    def step(
        self, send: tuple[int, Span] | None = None, recv: tuple[int, Span] | None = None, adds: bool = False
    ) -> None:
        """One step: send a part to a rank and, at the same time, receive one; `adds`: what comes is added
        to what is there, else it replaces it."""
        self.trace.steps += 1
        work = None
        if send is not None:
            to, span = send
            work = collectives.isend(self.flat[span[0] : span[1]], group=self.group, group_dst=to)
            self.trace.sent.append(self._move(self.rank, to, span, adds))
        if recv is not None:
            source, span = recv
            came = wt.empty_like(self.flat[span[0] : span[1]])
            collectives.recv(came, group=self.group, group_src=source)
            self.trace.received.append(self._move(source, self.rank, span, adds))
        if work is not None:
            work.wait()  # what is sent may be what now changes
        if recv is not None:
            here = self.flat[span[0] : span[1]]
            here.copy_(here + came if adds else came)
        self._show()

    def finish(self, tensor: Tensor) -> Trace:
        """Leaves the sum in the tensor.

        Args:
            tensor: what the caller gave.
        """
        if tensor.numel() and self.flat.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(self.flat.view(tensor.shape))
        return self.trace


def chunk(index: int, numel: int, n: int) -> Span:
    """The elements of one of n chunks; their sizes differ by one at most.

    Args:
        index: which chunk, from 0.
        numel: elements in all.
        n: number of chunks.

    >>> from warptape.distributed.algorithms.textbook import chunk
    >>> [chunk(i, 5, 2) for i in range(2)]
    [(0, 2), (2, 5)]
    """
    return index * numel // n, (index + 1) * numel // n


def naive_all_reduce(tensor: Tensor, group: Group = None, watch: Watch | None = None) -> Trace:
    """All send to rank 0, which adds, and sends the sum to all: 2(n - 1) steps of N elements, one after the
    other, for rank 0 has one link.

    Args:
        tensor: any shape, of a dtype and shape that all ranks share; becomes the sum.
        watch: called with the number of the step and a copy of the flat tensor, at first with step 0.
    """
    line = _Line(tensor, group, watch)
    everything = (0, line.flat.numel())
    for other in range(1, line.size):
        line.step(
            send=(0, everything) if line.rank == other else None,
            recv=(other, everything) if line.rank == 0 else None,
            adds=True,
        )
    for other in range(1, line.size):
        line.step(
            send=(other, everything) if line.rank == 0 else None,
            recv=(0, everything) if line.rank == other else None,
        )
    return line.finish(tensor)


def ring_all_reduce(tensor: Tensor, group: Group = None, watch: Watch | None = None) -> Trace:
    """A reduce-scatter and an all-gather around a ring: 2(n - 1) steps of N/n elements, on all links at once.
    No algorithm sends less from the rank that sends most (P. Patarasuk and X. Yuan, "Bandwidth Optimal
    All-reduce Algorithms for Clusters of Workstations", 2009, sections 2 and 3).

    Args: as `naive_all_reduce`'s.
    """
    line = _Line(tensor, group, watch)
    n, rank = line.size, line.rank
    right, left = (rank + 1) % n, (rank - 1) % n

    def span(index: int) -> Span:
        return chunk(index % n, line.flat.numel(), n)

    # Reduce-scatter. Chunk c starts at rank c and grows by what each rank it passes has; after n - 1 steps
    # rank r has all of chunk r + 1.
    for k in range(n - 1):
        line.step(send=(right, span(rank - k)), recv=(left, span(rank - k - 1)), adds=True)
    # All-gather. The finished chunks go once around.
    for k in range(n - 1):
        line.step(send=(right, span(rank + 1 - k)), recv=(left, span(rank - k)))
    return line.finish(tensor)


def recursive_doubling_all_reduce(tensor: Tensor, group: Group = None, watch: Watch | None = None) -> Trace:
    """Ranks whose numbers differ in one bit exchange all that they have, for each bit: log2(n) steps of N
    elements. The fewest steps, for tensors so small that alpha is all that counts.

    Where n is no power of two, of the first 2(n - p) ranks every even one first sends its tensor to the
    next and leaves the game to it; in the end it gets the result from there: two steps more (Thakur,
    Rabenseifner and Gropp 2005, on Allreduce).

    Args: as `naive_all_reduce`'s.
    """
    line = _Line(tensor, group, watch)
    n, rank, everything = line.size, line.rank, (0, line.flat.numel())
    p = 1 << (n.bit_length() - 1)
    paired = 2 * (n - p)  # ranks that play as two
    sits_out, stands_for_two = rank < paired and rank % 2 == 0, rank < paired and rank % 2 == 1
    if paired:
        line.step(
            send=(rank + 1, everything) if sits_out else None,
            recv=(rank - 1, everything) if stands_for_two else None,
            adds=True,
        )
    player = rank // 2 if rank < paired else rank - paired // 2  # 0 <= player < p
    bit = 1
    while bit < p:
        partner = player ^ bit
        peer = 2 * partner + 1 if partner < paired // 2 else partner + paired // 2
        both = None if sits_out else (peer, everything)
        line.step(send=both, recv=both, adds=True)
        bit *= 2
    if paired:
        line.step(
            send=(rank - 1, everything) if stands_for_two else None,
            recv=(rank + 1, everything) if sits_out else None,
        )
    return line.finish(tensor)


ALGORITHMS: dict[str, Callable[..., Trace]] = {
    "naive": naive_all_reduce,
    "ring": ring_all_reduce,
    "recursive doubling": recursive_doubling_all_reduce,
}


@dataclass(frozen=True)
class Cost:
    """What an all-reduce costs whoever waits for its last step. Bytes need not be whole.

    Args:
        steps: messages that wait for one another.
        bytes: sent by one rank.
        added: bytes that one rank adds.
        busiest: bytes through the busiest rank.
    """

    steps: int  # each one message: alpha
    bytes: float  # sent one after the other: beta
    added: float  # bytes added one after the other: gamma
    busiest: float  # bytes that the rank sends that sends most

    def seconds(self, alpha: float, beta: float, gamma: float = 0.0) -> float:
        """By the seconds that a message, a byte sent and a byte added take.

        Args:
            alpha: seconds of a message.
            beta: seconds of a byte that is sent.
            gamma: seconds of a byte that is added.
        """
        return self.steps * alpha + self.bytes * beta + self.added * gamma


def predict(algorithm: str, n: int, nbytes: float) -> Cost:
    """The cost of an algorithm of `ALGORITHMS` over n ranks for tensors of `nbytes` bytes.

    Args:
        algorithm: its name.
        n: the number of ranks.
        nbytes: bytes of each rank's tensor.

    >>> from warptape.distributed.algorithms.textbook import predict
    >>> predict("ring", 4, 1000).bytes
    1500.0
    """
    if algorithm == "naive":
        return Cost(2 * (n - 1), 2 * (n - 1) * nbytes, (n - 1) * nbytes, (n - 1) * nbytes)
    if algorithm == "ring":
        part = (n - 1) * nbytes / n
        return Cost(2 * (n - 1), 2 * part, part, 2 * part)
    if algorithm == "recursive doubling":
        bits, rest = n.bit_length() - 1, n & (n - 1) != 0
        doublings = bits * nbytes
        return Cost(
            bits + 2 * rest,
            doublings + 2 * rest * nbytes,
            doublings + rest * nbytes,
            doublings + rest * nbytes,
        )
    raise ValueError(f"predict: expected one of {', '.join(ALGORITHMS)}, got {algorithm!r}")


def holdings(traces: Sequence[Trace], numel: int) -> list[list[list[int]]]:
    """Who holds what: for each step from 0, each rank and each element, whose parts are in the sum there, as
    bits (1 << rank). Follows from the traces of all ranks alone.

    Raises: ValueError when a rank's part would be in a sum twice, or when sender and receiver disagree.
    """
    n = len(traces)
    sent = sorted((move for trace in traces for move in trace.sent), key=_order)
    if sent != sorted((move for trace in traces for move in trace.received), key=_order):
        raise ValueError("holdings: what was sent is not what was received")
    now = [[1 << rank] * numel for rank in range(n)]
    out = [now]
    for step in range(1, max(trace.steps for trace in traces) + 1):
        before, now = now, [list(row) for row in now]
        for move in sent:
            for i in range(*move.span) if move.step == step else ():
                moved, had = before[move.source][i], now[move.destination][i]
                if move.adds and moved & had:
                    raise ValueError(f"holdings: step {step} adds a part twice on rank {move.destination}")
                now[move.destination][i] = moved | had if move.adds else moved
        out.append(now)
    return out


def _order(move: Move) -> Any:
    return move.step, move.source, move.destination, move.span
