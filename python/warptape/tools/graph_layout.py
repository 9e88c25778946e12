"""Where the nodes and edges of a drawn graph lie: a layered layout (Sugiyama, Tagawa and Toda 1981).

Nodes stand in layers by their longest path, in each layer in an order that keeps crossings few (by the mean
place of their neighbours, up and down), as near as they can be to their neighbours. Of two columns, each laid
out by itself, the second goes from the bottom to the top: backward beside the forward that it belongs to. A
node may hold graphs of its own, which are laid out first. All lengths are in pixels, y grows downward.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

LINE, CHARACTER = 15.0, 7.2  # height of a line of text, width of a character
PAD, GAP, LAYER_GAP, WIRE = 8.0, 22.0, 34.0, 10.0  # within nodes, between them, between layers, of an edge
COLUMN_GAP = 70.0
LONGEST = 10  # layers that an edge which keeps clear of nodes spans; a longer one is drawn as an arc
SWEEPS = 8


@dataclass
class Vertex:
    """A box of some lines of text, and of graphs below them. `role` is what it is in the picture."""

    lines: list[str]
    role: str = "forward"
    tip: str = ""
    inner: list[Graph] = field(default_factory=list)
    column: int = 0  # or 1


@dataclass
class Edge:
    """From node to node by their places in the list. `saved`: from forward to backward."""

    source: int
    target: int
    saved: bool = False


@dataclass
class Graph:
    """What is drawn. Edges make no cycle."""

    nodes: list[Vertex] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    def add(self, node: Vertex) -> int:
        """Appends the node and returns its place."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def connect(self, source: int, target: int, saved: bool = False) -> None:
        """Appends an edge, unless there is the same."""
        edge = Edge(source, target, saved)
        if edge not in self.edges[-64:]:
            self.edges.append(edge)


@dataclass
class Box:
    """Where a node lies, and the graphs in it, each relative to the corner of the box."""

    x: float
    y: float
    width: float
    height: float
    inner: list[tuple[float, float, Placed]]


@dataclass
class Placed:
    """A graph that was laid out: a box by node, and by edge the points that it passes.

    Between its ends an edge has a point below the layer that it begins in, and two in each that it passes,
    above and below the nodes there.
    `arcs` are the four points of a Bezier curve that goes past what lies between.
    """

    graph: Graph
    width: float
    height: float
    boxes: list[Box]
    paths: list[list[tuple[float, float]]]
    arcs: list[bool]


def layers_of(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each node: below all that lead to it; what nothing leads to, next to what it leads to.

    Raises:
        ValueError: the edges make a cycle.
    """
    after: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, target in edges:
        after[source].append(target)
        waiting[target] += 1
    ready = [n for n in range(count) if not waiting[n]]
    starts = list(ready)
    layer = [0] * count
    for n in ready:  # which grows
        for target in after[n]:
            layer[target] = max(layer[target], layer[n] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if len(ready) < count:
        raise ValueError("graph: its edges make a cycle")
    for n in starts:
        if after[n]:
            layer[n] = min(layer[target] for target in after[n]) - 1
    return layer


def crossings(upper: Sequence[int], edges: Sequence[tuple[int, int]]) -> int:
    """How many pairs of edges cross that go from places among `upper` nodes to places in the next layer."""
    seen: list[int] = []
    count = 0
    for _, low in sorted(edges):
        count += len(seen) - bisect_right(seen, low)
        insort(seen, low)
    return count


def nearest(wanted: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Ascending places, gaps[i] or more between the i-th and the next, nearest to the `wanted` ones.

    The sum of squared distances is least: what would overlap moves as one block (pool adjacent violators).
    """
    shift = [0.0]
    for gap in gaps:
        shift.append(shift[-1] + gap)
    blocks: list[tuple[float, int]] = []  # sum and count of what they want
    for place, by in zip(wanted, shift, strict=True):
        total, count = place - by, 1
        while blocks and blocks[-1][0] * count > total * blocks[-1][1]:
            more, number = blocks.pop()
            total, count = total + more, count + number
        blocks.append((total, count))
    flat = [total / count for total, count in blocks for _ in range(count)]
    return [place + by for place, by in zip(flat, shift, strict=True)]


class _Layers:
    """The layers of one graph: nodes, and a bend of each edge in every layer that it passes."""

    def __init__(self, sizes: list[tuple[float, float]], edges: list[Edge]) -> None:
        self.layer = layers_of(len(sizes), [(e.source, e.target) for e in edges])
        self.width = [w for w, _ in sizes]
        self.above: list[list[int]] = [[] for _ in sizes]
        self.below: list[list[int]] = [[] for _ in sizes]
        self.chains: dict[tuple[int, int], list[int]] = {}
        for source, target in dict.fromkeys((e.source, e.target) for e in edges if not e.saved):
            span = self.layer[target] - self.layer[source]
            if span > LONGEST:
                continue
            chain = [source, *(self._bend(self.layer[source] + k) for k in range(1, span)), target]
            for a, b in pairwise(chain):
                self.below[a].append(b)
                self.above[b].append(a)
            self.chains[source, target] = chain
        self.rows: list[list[int]] = [[] for _ in range(max(self.layer, default=-1) + 1)]
        for n, layer in enumerate(self.layer):
            self.rows[layer].append(n)
        self._order()
        self._place()

    def _bend(self, layer: int) -> int:
        self.layer.append(layer)
        self.width.append(WIRE)
        self.above.append([])
        self.below.append([])
        return len(self.layer) - 1

    def _crossings(self) -> int:
        total = 0
        for row, following in pairwise(self.rows):
            place = {n: i for i, n in enumerate(following)}
            total += crossings(row, [(i, place[b]) for i, n in enumerate(row) for b in self.below[n]])
        return total

    def _order(self) -> None:
        best, least = [list(row) for row in self.rows], self._crossings()
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            rows = self.rows if down else self.rows[::-1]
            neighbours = self.above if down else self.below
            for fixed, row in pairwise(rows):
                place = {n: i for i, n in enumerate(fixed)}
                scale = len(fixed) / max(len(row), 1)
                mean = {
                    n: sum(place[m] for m in neighbours[n]) / len(neighbours[n])
                    if neighbours[n]
                    else i * scale
                    for i, n in enumerate(row)
                }
                row.sort(key=mean.__getitem__)
            count = self._crossings()
            if count < least:
                best, least = [list(row) for row in self.rows], count
        self.rows = best

    def _place(self) -> None:
        """Sets the middle of each node and bend."""
        self.middle = [0.0] * len(self.layer)
        gaps = [[(self.width[a] + self.width[b]) / 2 + GAP for a, b in pairwise(row)] for row in self.rows]
        for row, between in zip(self.rows, gaps, strict=True):
            for n, x in zip(row, nearest([0.0] * len(row), between), strict=True):
                self.middle[n] = x
        for sweep in range(SWEEPS):
            order = range(len(self.rows)) if sweep % 2 == 0 else range(len(self.rows) - 1, -1, -1)
            for k in order:
                row = self.rows[k]
                around = [self.above[n] + self.below[n] for n in row]
                wanted = [
                    sum(self.middle[m] for m in near) / len(near) if near else self.middle[n]
                    for n, near in zip(row, around, strict=True)
                ]
                for n, x in zip(row, nearest(wanted, gaps[k]), strict=True):
                    self.middle[n] = x


def _measure(node: Vertex, inner: list[Placed]) -> tuple[float, float]:
    text = max((len(line) for line in node.lines), default=0) * CHARACTER
    inside = sum(p.width for p in inner) + PAD * max(len(inner) - 1, 0)
    below = max((p.height + PAD for p in inner), default=0.0)
    return max(text, inside) + 2 * PAD, len(node.lines) * LINE + below + PAD


def _arc(a: Box, b: Box) -> list[tuple[float, float]]:
    """From side to side: those that face each other, or the right ones where one box is below the other."""
    y, to_y = a.y + a.height / 2, b.y + b.height / 2
    if a.x + a.width <= b.x:
        x, to_x = a.x + a.width, b.x
        way = max((to_x - x) / 2, 40.0)
        return [(x, y), (x + way, y), (to_x - way, to_y), (to_x, to_y)]
    if b.x + b.width <= a.x:
        x, to_x = a.x, b.x + b.width
        way = max((x - to_x) / 2, 40.0)
        return [(x, y), (x - way, y), (to_x + way, to_y), (to_x, to_y)]
    x, to_x = a.x + a.width, b.x + b.width
    far = max(x, to_x) + 40.0 + min(0.2 * abs(to_y - y), 140.0)
    return [(x, y), (far, y), (far, to_y), (to_x, to_y)]


class _Column:
    """Some nodes of a graph, laid out from top to bottom."""

    def __init__(self, graph: Graph, sizes: list[tuple[float, float]], members: list[int]) -> None:
        self.members = members
        self.number = {n: i for i, n in enumerate(members)}
        edges = [
            Edge(self.number[e.source], self.number[e.target], e.saved)
            for e in graph.edges
            if e.source in self.number and e.target in self.number
        ]
        self.sizes = [sizes[n] for n in members]
        self.rows = _Layers(self.sizes, edges)
        self.heights = [max(self.sizes[i][1] for i in row if i < len(members)) for row in self.rows.rows]
        sides = [(x - w / 2, x + w / 2) for x, w in zip(self.rows.middle, self.rows.width, strict=True)]
        self.left = min(low for low, _ in sides)
        self.width = max(high for _, high in sides) - self.left
        self.height = sum(self.heights) + LAYER_GAP * (len(self.heights) - 1)

    def stretch(self, height: float, flips: bool) -> None:
        """Sets where the layers begin, so that the first is at the top and the last ends at `height`."""
        gap = LAYER_GAP + (height - self.height) / max(len(self.heights) - 1, 1)
        self.end = height if flips else None
        self.tops = [0.0]
        for h in self.heights:
            self.tops.append(self.tops[-1] + h + gap)

    def _y(self, y: float) -> float:
        return y if self.end is None else self.end - y

    def box(self, node: int, x: float) -> Box:
        """Of the node, where the column begins at x."""
        i = self.number[node]
        width, height = self.sizes[i]
        top = self.tops[self.rows.layer[i]]
        y = self._y(top) if self.end is None else self._y(top + height)
        return Box(self.rows.middle[i] - width / 2 - self.left + x, y, width, height, [])

    def path(self, edge: Edge, x: float) -> list[tuple[float, float]] | None:
        """The points of an edge; None of one that leaves the column, or is too long."""
        ends = self.number.get(edge.source, -1), self.number.get(edge.target, -1)
        chain = None if edge.saved else self.rows.chains.get(ends)
        if chain is None:
            return None
        layer, tops = self.rows.layer, self.tops
        first, last = layer[chain[0]], layer[chain[-1]]
        at = [self.rows.middle[n] - self.left + x for n in chain]
        points = [(at[0], tops[first] + self.sizes[chain[0]][1]), (at[0], tops[first] + self.heights[first])]
        for place, bend in zip(at[1:-1], chain[1:-1], strict=True):
            top = tops[layer[bend]]
            points += [(place, top), (place, top + self.heights[layer[bend]])]
        return [(place, self._y(y)) for place, y in [*points, (at[-1], tops[last])]]


def place(graph: Graph) -> Placed:
    """Lays the graph out, and the graphs in its nodes.

    Raises:
        ValueError: its edges make a cycle.
    """
    inner = [[place(g) for g in node.inner] for node in graph.nodes]
    sizes = [_measure(node, held) for node, held in zip(graph.nodes, inner, strict=True)]
    members = [[n for n, node in enumerate(graph.nodes) if node.column == c] for c in (0, 1)]
    columns = [_Column(graph, sizes, of) for of in members if of]
    height = max((c.height for c in columns), default=0.0)
    boxes: dict[int, Box] = {}
    paths: dict[int, list[tuple[float, float]]] = {}
    right = -COLUMN_GAP
    for column in columns:
        column.stretch(height, flips=graph.nodes[column.members[0]].column == 1)
        boxes |= {n: column.box(n, right + COLUMN_GAP) for n in column.members}
        by_edge = [(k, column.path(e, right + COLUMN_GAP)) for k, e in enumerate(graph.edges)]
        paths |= {k: points for k, points in by_edge if points}
        right += COLUMN_GAP + column.width
    for n, box in boxes.items():
        x = PAD
        for p in inner[n]:
            box.inner.append((x, len(graph.nodes[n].lines) * LINE + PAD / 2, p))
            x += p.width + PAD
    arcs = [k not in paths for k in range(len(graph.edges))]
    for k, edge in enumerate(graph.edges):
        if arcs[k]:
            paths[k] = _arc(boxes[edge.source], boxes[edge.target])
            right = max(right, *(x for x, _ in paths[k]))
    in_order = [boxes[n] for n in range(len(boxes))], [paths[k] for k in range(len(paths))]
    return Placed(graph, max(right, 0.0), height, *in_order, arcs)
