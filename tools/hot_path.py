"""The instructions that a warp issues on its way through a kernel, from the kernel's machine code.

A disassembly says what there is, not what runs. Which way a warp takes at a branch is guessed by one rule:
of all ways from the entry to an exit it takes the one that executes most of the instructions that matter
(accesses of 16 bytes and tensor cores, say), and among those the shortest. So a tail for sizes that are no
multiples of a tile, a mask or a slow division is passed by, for it has more instructions and none that
matter. A loop is what lies between a backward branch and its target; how often it runs is told by a `Loop`.

Left out: instructions that are issued again (bank conflicts, accesses of many lines), called functions, and
ways that several lanes of a warp take apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from sass_gate import Instruction

#: What matters where a kernel says nothing else.
PREFER = r"(LDG|STG)\S*\.128|[HI]MMA|HGMMA"


class Exactly(NamedTuple):
    """A way must have `count` instructions `marker`, a pattern; where none has so many, the most below, else
    the fewest. It tells apart ways that differ in how many they have: by dtype, or unrolled for several
    lengths."""

    marker: str
    count: int


class Loop(NamedTuple):
    """A loop that has instructions `marker`, a pattern, of its own (not in a loop within it). It runs `trips`
    times; one trip of the source's loop has `markers` of them, so a body that the compiler unrolled counts
    for as many trips as it has times the markers. Where several loops have the marker, the one with most of
    it makes the trips and the others, made for the rest, none; with `each`, all make them. `exactly` is of
    the way of one trip of the body."""

    marker: str
    markers: float
    trips: float
    each: bool = False
    exactly: Exactly | None = None


class Way(NamedTuple):
    """Part of a path: how many of its instructions matter, and how often each is issued."""

    score: float
    counts: Counter[str]

    def worth(self) -> tuple[float, float]:
        return self.score, -sum(self.counts.values())


@dataclass
class Graph:
    """Basic blocks by their first address: what they cost and where they lead; after `collapse` a loop is one
    block."""

    ways: dict[int, Way] = field(default_factory=dict)
    next: dict[int, list[int]] = field(default_factory=dict)
    place: dict[int, int] = field(default_factory=dict)  # block -> the loop that it became part of

    def at(self, block: int) -> int:
        while self.place.get(block, block) != block:
            block = self.place[block]
        return block

    def after(self, block: int) -> list[int]:
        return [self.at(b) for b in self.next[block]]


def target_of(instruction: Instruction) -> int | None:
    """Where a branch goes; None of an instruction that is none, and of the branch of a warp whose lanes have
    come apart."""
    if not re.match(r"(BRA|JMP)(\.|$)", instruction.name) or ".DIV" in instruction.name:
        return None
    found = re.search(r"0x([0-9a-f]+)\s*$", instruction.operands)
    return int(found[1], 16) if found else None


def goes_on(instruction: Instruction) -> bool:
    """Whether the next instruction may follow."""
    conditional = bool(instruction.predicate) or bool(re.match(r"!?U?P\w+,", instruction.operands))
    ends = re.match(r"(BRA|JMP|BRX|EXIT|RET|KILL)(\.|$)", instruction.name)
    return not ends or conditional or ".DIV" in instruction.name


def flow(code: Sequence[Instruction], prefer: str) -> Graph:
    """The basic blocks that can be reached from the first instruction."""
    follows = {a.address: b.address for a, b in pairwise(code)}
    begins = {code[0].address}
    for one in code:
        target = target_of(one)
        if target is not None:
            begins.add(target)
        if (target is not None or not goes_on(one)) and one.address in follows:
            begins.add(follows[one.address])
    graph, block = Graph(), code[0].address
    for one in code:
        if one.address in begins:
            block = one.address
            graph.ways[block], graph.next[block] = Way(0, Counter()), []
        counts = graph.ways[block].counts
        counts[one.name] += 1
        graph.ways[block] = Way(graph.ways[block].score + bool(re.match(prefer, one.name)), counts)
        last = follows.get(one.address)
        if last is None or last in begins or target_of(one) is not None:
            target = target_of(one)
            reached = ([target] if target is not None else []) + (
                [last] if last is not None and goes_on(one) else []
            )
            graph.next[block] = [b for b in reached if b in begins]
    for unreached in set(graph.ways) - set(in_order(graph, code[0].address)):
        del graph.ways[unreached], graph.next[unreached]
    return graph


def in_order(graph: Graph, entry: int, within: set[int] | None = None) -> list[int]:
    """Blocks that are reached from the entry, each before those it leads to, but for backward branches."""
    done: list[int] = []
    seen = {entry}
    stack = [(entry, iter(graph.after(entry)))]
    while stack:
        block, rest = stack[-1]
        for following in rest:
            if following not in seen and (within is None or following in within):
                seen.add(following)
                stack.append((following, iter(graph.after(following))))
                break
        else:
            done.append(block)
            stack.pop()
    return done[::-1]


def dominators(graph: Graph, entry: int) -> dict[int, set[int]]:
    """Of each block, the blocks that every way to it passes (Aho et al., "Compilers", section 9.6)."""
    order = in_order(graph, entry)
    before: dict[int, list[int]] = {b: [] for b in order}
    for block in order:
        for following in graph.next[block]:
            before[following].append(block)
    all_of = {block: set(order) for block in order}
    all_of[entry] = {entry}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            now = set.intersection(*(all_of[b] for b in before[block])) | {block}
            if now != all_of[block]:
                all_of[block], changed = now, True
    return all_of


def natural_loops(graph: Graph, entry: int) -> list[tuple[int, set[int], set[int]]]:
    """(first block, all blocks, blocks with the backward branch) of each loop, inner ones first."""
    over = dominators(graph, entry)
    before: dict[int, set[int]] = {b: set() for b in graph.ways}
    for block, following in graph.next.items():
        for b in following:
            before[b].add(block)
    found: dict[int, tuple[set[int], set[int]]] = {}
    for block, following in graph.next.items():
        for head in following:
            if head not in over[block]:
                continue
            body, ends = found.setdefault(head, ({head}, set()))
            ends.add(block)
            stack = [block]
            while stack:
                b = stack.pop()
                if b not in body:
                    body.add(b)
                    stack.extend(before[b])
    return sorted(((head, *of) for head, of in found.items()), key=lambda loop: len(loop[1]))


def best_way(
    graph: Graph,
    entry: int,
    ends: Iterable[int],
    within: set[int] | None = None,
    exactly: Exactly | None = None,
) -> Way:
    """From the entry to one of the ends, both counted; branches to what came before are not taken."""
    order = in_order(graph, entry, within)
    rank = {block: i for i, block in enumerate(order)}
    stops = set(ends)
    best: dict[int, dict[int, Way]] = {}  # by how many of `exactly` a way from a block has
    for block in reversed(order):
        own = graph.ways[block]
        has = round(matching(own.counts, exactly.marker)) if exactly else 0
        here = {has: own} if block in stops else {}
        for following in graph.after(block):
            if rank.get(following, -1) <= rank[block]:
                continue
            for n, rest in best.get(following, {}).items():
                way = Way(own.score + rest.score, own.counts + rest.counts)
                n += has
                if n not in here or way.worth() > here[n].worth():
                    here[n] = way
        best[block] = here
    if not best[entry]:
        raise ValueError(f"no way leads from {entry:#x} to an end")
    wanted = exactly.count if exactly else 0
    return best[entry][max((n for n in best[entry] if n <= wanted), default=min(best[entry]))]


def matching(counts: Counter[str], marker: str) -> float:
    return sum(n for name, n in counts.items() if re.match(marker, name))


def choose_loops(
    graph: Graph, found: Sequence[tuple[int, set[int], set[int]]], loops: Sequence[Loop]
) -> dict[int, tuple[Loop, bool]]:
    """By first block: the Loop that it is, and whether it makes the trips."""
    own: dict[int, Counter[str]] = {}
    for i, (head, body, _) in enumerate(found):
        inner = set().union(*(b for h, b, _ in found[:i] if h in body))
        own[head] = sum((graph.ways[b].counts for b in body - inner), Counter())
    chosen: dict[int, tuple[Loop, bool]] = {}
    for head, counts in own.items():
        for loop in loops:
            if here := matching(counts, loop.marker):
                most = max(matching(c, loop.marker) for c in own.values())
                chosen[head] = (loop, loop.each or here == most)
                break
    return chosen


def hot_path(
    code: Sequence[Instruction],
    loops: Sequence[Loop] = (),
    prefer: str = PREFER,
    exactly: Exactly | None = None,
) -> Counter[str]:
    """How often a warp issues each instruction, by name. Loops that no Loop is about run once; `exactly` is
    of the way outside of loops. Raises ValueError where no way leads to an exit."""
    entry = code[0].address
    graph = flow(code, prefer)
    found = natural_loops(graph, entry)
    chosen = choose_loops(graph, found, loops)
    for head, body, ends in found:
        within = {graph.at(b) for b in body}
        asked = chosen[head][0].exactly if head in chosen else None
        way = best_way(graph, head, {graph.at(b) for b in ends}, within, asked)
        trips = 1.0
        if head in chosen:
            loop, runs = chosen[head]
            here = matching(way.counts, loop.marker)
            trips = loop.trips * loop.markers / here if runs and here else loop.trips if runs else 0.0
        scaled = Counter({name: n * trips for name, n in way.counts.items()})
        graph.ways[head] = Way(way.score * trips, scaled)
        graph.next[head] = sorted({b for block in within for b in graph.after(block)} - within)
        for block in within:
            graph.place[block] = head
    ends = [b for b in graph.ways if graph.at(b) == b and not graph.next[b]]
    return best_way(graph, graph.at(entry), ends, exactly=exactly).counts
