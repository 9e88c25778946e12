"""The protocol of kernels/cuda/common/tma_ring.cuh, explored exhaustively: every order in which a producer,
its consumers and TMA may go on, for rings of two stages. A state is wrong where a buffer is read that does
not hold its slice, where one is overwritten while it is read, or where nobody can go on. So are the buffers
in which parts of C wait for TMA to store them. Planted faults must be found.

Roles are lists of actions, written after wgmma.cuh of the ladder and wgmma_tile.cuh, attention_wgmma.cu and
attention_wgmma_backward.cu. mbarriers are PTX's: a phase ends when its arrivals and its bytes are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

STAGES, CONSUMERS = 2, 2
Action = tuple  # (name, ...) of run()


class Barrier(NamedTuple):
    arrivals: int  # of a phase
    pending: int
    transfers: int = 0  # that have not come yet
    parity: int = 0  # of the phase under way

    def after(self, arrived: int = 0, transfers: int = 0) -> Barrier:
        pending, left = self.pending - arrived, self.transfers + transfers
        assert pending >= 0, "more arrivals than a phase has"
        if pending == 0 and left == 0:
            return Barrier(self.arrivals, self.arrivals, 0, self.parity ^ 1)
        return self._replace(pending=pending, transfers=left)

    def is_over(self, parity: int) -> bool:
        return self.parity != parity


class State(NamedTuple):
    counters: tuple[int, ...]  # of the roles
    barriers: tuple[tuple[str, Barrier], ...]
    buffers: tuple[tuple[str, int], ...]  # what a buffer holds; -1: nothing, or on its way
    coming: frozenset[tuple[str, str, int]]  # transfers: buffer, barrier, slice
    reading: frozenset[tuple[int, str]]  # role, buffer
    leaving: frozenset[tuple[str, int]] = frozenset()  # buffers that TMA is to store, and what they held


class Wrong(Exception):
    """What the protocol must not allow."""


def after(state: State, role: int, action: Action) -> State | None:
    """The state when the role's next action is done; None where it has to wait."""
    barriers, buffers = dict(state.barriers), dict(state.buffers)
    coming, reading, leaving = state.coming, state.reading, state.leaving
    kind, *args = action
    if kind == "wait":
        name, parity = args
        if not barriers[name].is_over(parity):
            return None
    elif kind == "arrive":
        barriers[args[0]] = barriers[args[0]].after(1)
    elif kind == "expect":  # arrives, and lets the phase wait for so many transfers
        barriers[args[0]] = (
            barriers[args[0]]._replace(transfers=barriers[args[0]].transfers + args[1]).after(1)
        )
    elif kind == "fetch":
        buffer, barrier, number = args
        if any(b == buffer for _, b in reading):
            raise Wrong(f"{buffer} is overwritten while it is read")
        buffers[buffer] = -1
        coming |= {(buffer, barrier, number)}
    elif kind == "read":  # a product begins that reads until "read to its end"
        buffer, number = args
        if buffers[buffer] != number:
            raise Wrong(f"{buffer} holds {buffers[buffer]}, {number} is read")
        reading |= {(role, buffer)}
    elif kind == "read to its end":
        reading -= {(role, args[0])}
    elif kind == "write":
        buffer, number = args
        if any(b == buffer for b, _ in leaving):
            raise Wrong(f"{buffer} is overwritten before it was stored")
        buffers[buffer] = number
    elif kind == "store":
        buffer, number = args
        if buffers[buffer] != number:
            raise Wrong(f"{buffer} holds {buffers[buffer]}, {number} is stored")
        leaving |= {(buffer, number)}
    elif kind == "stored":  # all that was stored up to this number was read
        if any(number <= args[0] for _, number in leaving):
            return None
    counters = tuple(c + (k == role) for k, c in enumerate(state.counters))
    return State(counters, tuple(barriers.items()), tuple(buffers.items()), coming, reading, leaving)


def arrived(state: State, transfer: tuple[str, str, int]) -> State:
    """TMA has brought a box."""
    buffer, barrier, number = transfer
    barriers, buffers = dict(state.barriers), dict(state.buffers)
    buffers[buffer] = number
    barriers[barrier] = barriers[barrier].after(transfers=-1)
    return state._replace(
        barriers=tuple(barriers.items()), buffers=tuple(buffers.items()), coming=state.coming - {transfer}
    )


def explore(roles: list[list[Action]], barriers: dict[str, int], buffers: list[str]) -> int:
    """Visits every state that can be reached, and gives their number; raises Wrong."""
    first = State(
        (0,) * len(roles),
        tuple((name, Barrier(n, n)) for name, n in barriers.items()),
        tuple((name, -1) for name in buffers),
        frozenset(),
        frozenset(),
    )
    seen, left = {first}, [first]
    while left:
        state = left.pop()
        following = [arrived(state, transfer) for transfer in state.coming]
        for role, actions in enumerate(roles):
            if state.counters[role] < len(actions):
                following.append(after(state, role, actions[state.counters[role]]))
        over = all(c == len(a) for c, a in zip(state.counters, roles, strict=True))
        if over and state.leaving:
            raise Wrong("the block ends while TMA reads its memory")
        following += [state._replace(leaving=state.leaving - {one}) for one in state.leaving]
        going = [s for s in following if s is not None]
        if not going and not over:
            raise Wrong(f"nobody can go on at {state.counters}")
        if not going and state.reading:
            raise Wrong("a product was never waited for")
        left += [s for s in going if s not in seen]
        seen.update(going)
    return len(seen)


def turns(steps: int, stages: int = STAGES) -> Iterator[tuple[int, int, int]]:
    """Slice, stage and parity, as Turn counts them."""
    for i in range(steps):
        yield i, i % stages, i // stages % 2


def names(*rings: str) -> tuple[dict[str, int], list[str]]:
    barriers = {f"{r} full {s}": 1 for r in rings for s in range(STAGES)}
    barriers |= {f"{r} empty {s}": CONSUMERS for r in rings for s in range(STAGES)}
    return barriers, [f"{r} {s}" for r in rings for s in range(STAGES)]


def produce(steps: int, *rings: str, boxes: int = 1) -> list[Action]:
    """A tile of each ring a step, of `boxes` boxes."""
    actions: list[Action] = []
    for i, s, parity in turns(steps):
        for r in rings:
            actions += [("wait", f"{r} empty {s}", parity ^ 1), ("expect", f"{r} full {s}", boxes)]
            actions += [("fetch", f"{r} {s}", f"{r} full {s}", i)] * boxes
    return actions


def consume_gemm(steps: int) -> list[Action]:
    """A buffer is released when the product after its own has begun, the last of a tile of C, which is of
    three slices, when its own has ended."""
    actions: list[Action] = []
    for i, s, parity in turns(steps):
        actions += [("wait", f"k full {s}", parity), ("read", f"k {s}", i)]
        ended = [1] * (i % 3 > 0) + [0] * (i % 3 == 2 or i == steps - 1)
        for before in ended:
            last = (i - before) % STAGES
            actions += [("read to its end", f"k {last}"), ("arrive", f"k empty {last}")]
    return actions


def store_parts(tiles: int, parts: int = 4, buffers: int = 2) -> list[Action]:
    """A warp's parts of C, as store() and stored() of gemm/wgmma_tile.cuh. Groups are numbered from 0."""
    actions: list[Action] = []
    for number in range(tiles * parts):
        buffer = f"c {number % parts % buffers}"
        actions += [("stored", number - buffers), ("write", buffer, number), ("store", buffer, number)]
    return [*actions, ("stored", tiles * parts - 1)]


def multicast(
    steps: int, stages: int, boxes: int = 2
) -> tuple[list[list[Action]], dict[str, int], list[str]]:
    """Two blocks of a cluster, each with a producer and a consumer: roles, barriers and buffers. Of B each
    producer brings its share to both blocks. Rows of A, which are a block's own, are left out."""
    roles: list[list[Action]] = []
    for block in range(2):
        actions: list[Action] = []
        for i, s, parity in turns(steps, stages):
            actions += [("wait", f"{block} empty {s}", parity ^ 1), ("expect", f"{block} full {s}", boxes)]
            actions += [("fetch", f"{to} b{block} {s}", f"{to} full {s}", i) for to in range(2)]
        roles.append(actions)
    parts = ("b0", "b1")
    for block in range(2):
        actions = []
        for i, s, parity in turns(steps, stages):
            actions.append(("wait", f"{block} full {s}", parity))
            actions += [("read", f"{block} {part} {s}", i) for part in parts]
            actions += [("read to its end", f"{block} {part} {s}") for part in parts]
            actions += [("arrive", f"{to} empty {s}") for to in range(2)]
        roles.append(actions)
    places = [(block, s) for block in range(2) for s in range(stages)]
    barriers = {f"{block} full {s}": 1 for block, s in places} | {
        f"{block} empty {s}": 2 for block, s in places
    }
    return roles, barriers, [f"{block} {part} {s}" for block, s in places for part in parts]


def consume_attention(steps: int) -> list[Action]:
    """Scores of the next keys are asked for before the product with the values of the last ones."""
    actions: list[Action] = []
    before: tuple[int, int] | None = None  # slice and stage of the values whose product is to come
    for i, s, parity in turns(steps):
        actions += [("wait", f"k full {s}", parity), ("read", f"k {s}", i)]
        if before:
            actions += [("read", f"v {before[1]}", before[0])]
        actions += [
            ("read to its end", f"k {s}"),
            ("arrive", f"k empty {s}"),
            ("wait", f"v full {s}", parity),
        ]
        if before:
            actions += [("read to its end", f"v {before[1]}"), ("arrive", f"v empty {before[1]}")]
        before = (i, s)
    assert before
    return [*actions, ("read", f"v {before[1]}", before[0]), ("read to its end", f"v {before[1]}")]


def consume_backward(steps: int) -> list[Action]:
    """Pairs: their scores are there before their gradient is asked for, beside the next pair's scores."""
    actions: list[Action] = [("wait", "p full 0", 0), ("read", "p 0", 0), ("read to its end", "p 0")]
    for i, s, _ in turns(steps):
        actions += [("read", f"p {s}", i)]  # the gradient
        if i + 1 < steps:
            n, parity = (i + 1) % STAGES, (i + 1) // STAGES % 2
            actions += [("wait", f"p full {n}", parity), ("read", f"p {n}", i + 1)]
            actions += [
                ("read to its end", f"p {n}"),
                ("read to its end", f"p {s}"),
                ("arrive", f"p empty {s}"),
            ]
    return [*actions, ("read to its end", f"p {(steps - 1) % STAGES}")]


PROTOCOLS: dict[str, tuple[tuple[str, ...], Callable[[int], list[Action]]]] = {
    "gemm": (("k",), consume_gemm),
    "attention": (("k", "v"), consume_attention),
    "backward": (("p",), consume_backward),
}


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_order_is_right(name: str, steps: int) -> None:
    rings, consume = PROTOCOLS[name]
    barriers, buffers = names(*rings)
    roles = [produce(steps, *rings), *[consume(steps)] * CONSUMERS]
    assert explore(roles, barriers, buffers) > 5 * steps


def test_parts_of_c_are_stored_in_every_order() -> None:
    assert explore([store_parts(3)], {}, ["c 0", "c 1"]) > 12 * 3
    for fault in ("one group too many is left", "nobody waits at the end", "parts of an odd number"):
        actions = store_parts(3, 3 if "odd" in fault else 4)
        if "too many" in fault:
            actions = [(a[0], a[1] - 1) if a[0] == "stored" else a for a in actions]
        elif "the end" in fault:
            actions.pop()
        with pytest.raises(Wrong):
            explore([actions], {}, ["c 0", "c 1"])


@pytest.mark.parametrize(("steps", "stages"), [(1, 1), (4, 1), (2, 2)])
def test_a_cluster_is_right_in_every_order(steps: int, stages: int) -> None:
    assert explore(*multicast(steps, stages)) > 50 * steps


@pytest.mark.parametrize(
    "fault", ["own consumers alone", "no arrival at the other", "no wait for empty", "one box"]
)
def test_planted_faults_of_a_cluster_are_found(fault: str) -> None:
    roles, barriers, buffers = multicast(3, 1, boxes=1 if fault == "one box" else 2)
    if fault == "own consumers alone":  # both arrive, one is waited for
        barriers |= {name: 1 for name in barriers if "empty" in name}
    elif fault == "no arrival at the other":
        for block in range(2):
            roles[2 + block] = [
                a for a in roles[2 + block] if a[0] != "arrive" or a[1].startswith(str(block))
            ]
    elif fault == "no wait for empty":
        roles[0] = [a for a in roles[0] if a[0] != "wait"]
    with pytest.raises((Wrong, AssertionError)):
        explore(roles, barriers, buffers)


def without(actions: list[Action], kind: str) -> list[Action]:
    """All but the second action of that kind, or the first where there is one."""
    at = [k for k, a in enumerate(actions) if a[0] == kind]
    return [a for k, a in enumerate(actions) if k != at[min(1, len(at) - 1)]]


def with_parity(actions: list[Action], kind: str, parity: int) -> list[Action]:
    """Waits for that barrier never flip."""
    return [(a[0], a[1], parity) if a[0] == "wait" and kind in a[1] else a for a in actions]


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize(
    "fault",
    [
        "no wait for full",
        "no wait for empty",
        "no release",
        "early release",
        "parity of full",
        "parity of empty",
        "too few arrivals",
    ],
)
def test_planted_faults_are_found(name: str, fault: str) -> None:
    rings, consume = PROTOCOLS[name]
    barriers, buffers = names(*rings)
    steps = 6
    producer, consumer = produce(steps, *rings), consume(steps)
    if fault == "no wait for full":
        consumer = [a for a in consumer if a[0] != "wait"]
    elif fault == "no wait for empty":
        producer = [a for a in producer if a[0] != "wait"]
    elif fault == "no release":
        consumer = without(consumer, "arrive")
    elif fault == "early release":  # before the product that reads the buffer has ended
        for k in range(1, len(consumer)):
            if consumer[k][0] == "arrive" and consumer[k - 1][0] == "read to its end":
                consumer[k - 1], consumer[k] = consumer[k], consumer[k - 1]
    elif fault == "parity of full":
        consumer = with_parity(consumer, "full", 0)
    elif fault == "parity of empty":
        producer = with_parity(producer, "empty", 1)
    else:
        barriers |= {k: 1 for k in barriers if "empty" in k}
    with pytest.raises((Wrong, AssertionError)):
        explore([producer, *[consumer] * CONSUMERS], barriers, buffers)
