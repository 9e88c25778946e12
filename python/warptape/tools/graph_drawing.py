"""Pictures of graphs: the tape, graphs of ops, programs of kernels, fx graphs.

`draw(x)` gives a `Drawing` of any of them: SVG, which notebooks show, and DOT text for Graphviz, which is not
needed. docs/guides/compile.md says what the pictures of programs show.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from .. import _C
from ..core.protocols import HasGraph
from .graph_layout import LINE, PAD, Box, Graph, Placed, Vertex, place

__all__ = ["Drawing", "GraphText", "draw"]

_MOST_LINES = 5  # of the values that one node lists
# By role: what the legend says, and the colours within and around.
_ROLES = {
    "forward": ("op", "#dbeafe", "#2563eb"),
    "backward": ("backward", "#ffedd5", "#ea580c"),
    "update": ("after backward", "#dcfce7", "#16a34a"),
    "recomputed": ("computed again", "#fef9c3", "#a16207"),
    "control": ("control flow", "#fae8ff", "#a21caf"),
    "input": ("input, parameter", "#f1f5f9", "#94a3b8"),
    "output": ("seen outside", "#ede9fe", "#7c3aed"),
    "leaf": ("leaf, which gets a gradient", "#dcfce7", "#16a34a"),
    "fused": ("fused: one pass over memory", "#f8fafc", "#475569"),
    "dead": ("removed: nobody needs it", "#ffffff", "#cbd5e1"),
}
_AREAS = {"in": "#cbd5e1", "out": "#c4b5fd", "temporary": "#93c5fd"}


def _clean(text: str) -> str:
    """With a question mark for each character that XML has no way to write."""
    return re.sub("[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def _escaped(text: str) -> str:
    return _clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


class Drawing:
    """A graph to look at.

    Args:
        graph: nodes and edges.
        title: above the picture.
        memory: for each step the bytes in use by (what came in, what stays, what is freed again), in order;
            plotted below the graph.
    """

    def __init__(self, graph: Graph, title: str, memory: list[tuple[int, int, int]] | None = None) -> None:
        self.graph, self.title, self.memory = graph, title, memory or []

    def svg(self) -> str:
        """The picture as an SVG document."""
        placed = place(self.graph)
        parts, used = _SvgParts(), _roles(self.graph)
        names = [(_ROLES[r][0], _ROLES[r][1:]) for r in _ROLES if r in used]
        if "backward" in used:
            names = [("forward" if name == "op" else name, look) for name, look in names]
        if any(e.saved for e in self.graph.edges):
            names.append(("saved for backward", ("none", _ROLES["backward"][2])))
        parts.text(PAD, LINE, self.title, weight="bold")
        y = 1.6 * LINE
        width = max(placed.width, len(self.title) * 7.5, 420.0 if self.memory else 0.0)
        x = PAD
        for name, (fill, stroke) in names:
            if x > PAD and x + 8 * len(name) > width:
                x, y = PAD, y + LINE
            parts.box(x, y, 11, 11, fill, stroke)
            parts.text(x + 16, y + 10, name)
            x += 34 + 7.2 * len(name)
            width = max(width, x)
        y += 2 * LINE
        parts.graph(placed, PAD, y)
        y += placed.height + LINE
        if self.memory:
            parts.plot(self.memory, PAD, y, max(min(width, 900.0), 420.0))
            y += 190
        wide, high = f"{width + 2 * PAD:.0f}", f"{y + PAD:.0f}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
            f'viewBox="0 0 {wide} {high}" font-family="monospace" font-size="12">\n'
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0L8 4L0 8z" fill="#64748b"/></marker></defs>\n'
            '<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts.lines) + "\n</svg>\n"
        )

    def dot(self) -> str:
        """The graph as DOT text; fused steps and branches are clusters."""
        lines = [
            "digraph {",
            f"  label={_quoted(self.title)}; labelloc=t; compound=true;",
            '  node [shape=box, style="rounded,filled", fontname=monospace, fontsize=10];',
        ]
        _dot_graph(self.graph, "n", "  ", lines)
        return "\n".join([*lines, "}"]) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture to a file: `.svg`, or `.dot` and `.gv`.

        Raises:
            ValueError: another suffix.
        """
        suffix = os.path.splitext(os.fspath(path))[1]
        if suffix not in (".svg", ".dot", ".gv"):
            raise ValueError(f"Drawing.save: expected a file .svg, .dot or .gv, got {os.fspath(path)!r}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg() if suffix == ".svg" else self.dot())

    def _repr_svg_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return f"<Drawing of {self.title}: {len(self.graph.nodes)} nodes, {len(self.graph.edges)} edges>"


def _roles(graph: Graph) -> set[str]:
    inside = [_roles(g) for node in graph.nodes for g in node.inner]
    return {node.role for node in graph.nodes}.union(*inside)


class _SvgParts:
    """The elements of an SVG document, one a line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def text(self, x: float, y: float, text: str, weight: str = "normal", fill: str = "#0f172a") -> None:
        self.lines.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-weight="{weight}" xml:space="preserve">'
            f"{_escaped(text)}</text>"
        )

    def box(self, x: float, y: float, w: float, h: float, fill: str, stroke: str, more: str = "") -> None:
        self.lines.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="4" fill="{fill}" '
            f'stroke="{stroke}"{more}/>'
        )

    def graph(self, placed: Placed, left: float, top: float) -> None:
        for edge, points, arc in zip(placed.graph.edges, placed.paths, placed.arcs, strict=True):
            self._path([(x + left, y + top) for x, y in points], arc, edge.saved)
        for node, box in zip(placed.graph.nodes, placed.boxes, strict=True):
            self._node(node, box, left, top)

    def _node(self, node: Vertex, box: Box, left: float, top: float) -> None:
        _, fill, stroke = _ROLES[node.role]
        dashed = ' stroke-dasharray="5 3"' if node.role in ("dead", "fused") else ""
        x, y = box.x + left, box.y + top
        self.lines.append("<g>")
        if node.tip:
            self.lines.append(f"<title>{_escaped(node.tip)}</title>")
        self.box(x, y, box.width, box.height, fill, stroke, dashed)
        for k, line in enumerate(node.lines):
            first = k == 0 and node.role not in ("input", "output")
            colour = "#94a3b8" if node.role == "dead" else "#0f172a" if first else "#475569"
            self.text(x + PAD, y + (k + 0.9) * LINE, line, "bold" if first else "normal", colour)
        for dx, dy, held in box.inner:
            self.graph(held, x + dx, y + dy)
        self.lines.append("</g>")

    def _path(self, points: list[tuple[float, float]], arc: bool, saved: bool) -> None:
        at = [f"{x:.1f} {y:.1f}" for x, y in points]
        d = f"M{at[0]}"
        if arc:
            d += "C" + " ".join(at[1:])
        else:  # straight past the nodes of a layer, then a curve to the next
            for k in range(1, len(points), 2):
                (x, y), (to_x, to_y) = points[k : k + 2]
                half = (y + to_y) / 2
                d += f"L{at[k]}C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {at[k + 1]}"
        look = f'stroke="{"#cbd5e1" if arc else "#64748b"}"'
        if saved:
            look = f'stroke="{_ROLES["backward"][2]}" stroke-dasharray="4 3"'
        self.lines.append(f'<path d="{d}" fill="none" {look} marker-end="url(#arrow)"/>')

    def plot(self, memory: list[tuple[int, int, int]], x: float, y: float, width: float) -> None:
        """Bytes in use over the steps, three kinds of them on each other, at x and y."""
        most = max(map(sum, memory)) or 1
        peak = max(range(len(memory)), key=lambda k: sum(memory[k]))
        height, step = 120.0, width / len(memory)
        at = f"{_size(sum(memory[peak]))} at step {peak}"
        self.text(x, y + LINE, f"bytes in use while each step runs; the most: {at}", weight="bold")
        top = y + 2 * LINE
        below = [0.0] * len(memory)
        for kind, (name, colour) in enumerate(_AREAS.items()):
            above = [low + m[kind] for low, m in zip(below, memory, strict=True)]
            points = [(k + side, v) for k, v in enumerate(above) for side in (0, 1)]
            points += [(k + side, v) for k, v in reversed(list(enumerate(below))) for side in (1, 0)]
            where = " ".join(f"{x + k * step:.1f},{top + height * (1 - v / most):.1f}" for k, v in points)
            self.lines.append(f'<polygon points="{where}" fill="{colour}"><title>{name}</title></polygon>')
            below = above
        self.lines.append(
            f'<path d="M{x:.1f} {top:.1f}V{top + height:.1f}H{x + width:.1f}" fill="none" stroke="#475569"/>'
        )
        every = max(1, -(-len(memory) * 30 // int(width)))
        for k in range(0, len(memory), every):
            self.text(x + (k + 0.5) * step - 4, top + height + LINE, str(k), fill="#475569")
        x += 60
        for name, text in (("in", "came in"), ("out", "stays"), ("temporary", "is freed again")):
            self.box(x, top + height + 1.6 * LINE, 11, 11, _AREAS[name], _AREAS[name])
            self.text(x + 16, top + height + 1.6 * LINE + 10, text)
            x += 40 + 7.2 * len(text)


def _quoted(text: str) -> str:
    escaped = _clean(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _dot_graph(graph: Graph, prefix: str, indent: str, lines: list[str]) -> None:
    for i, node in enumerate(graph.nodes):
        name = f"{prefix}{i}"
        _, fill, stroke = _ROLES[node.role]
        look = f'fillcolor="{fill}", color="{stroke}"'
        label = "\\n".join(_quoted(line)[1:-1] for line in node.lines)
        if not node.inner:
            lines.append(f'{indent}{name} [label="{label}", {look}];')
            continue
        lines.append(f"{indent}subgraph cluster_{name} {{")
        lines.append(f'{indent}  style="rounded,dashed"; color="{stroke}"; bgcolor="{fill}";')
        lines.append(f'{indent}  {name} [label="{label}", shape=plaintext, style=""];')
        for k, held in enumerate(node.inner):
            _dot_graph(held, f"{name}_{k}_", indent + "  ", lines)
        lines.append(f"{indent}}}")
    for e in graph.edges:
        marks = [f'style=dashed, color="{_ROLES["backward"][2]}"'] if e.saved else []
        marks += [f"ltail=cluster_{prefix}{e.source}"] if graph.nodes[e.source].inner else []
        marks += [f"lhead=cluster_{prefix}{e.target}"] if graph.nodes[e.target].inner else []
        lines.append(f"{indent}{prefix}{e.source} -> {prefix}{e.target} [{', '.join(marks)}];")


class GraphText(str):
    """The text of a graph or program, which can be drawn by a function `draw`. Notebooks show the picture."""

    _draw: Callable[..., Drawing]

    def __new__(cls, text: str, draw: Callable[..., Drawing]) -> GraphText:  # noqa: D102
        picture = super().__new__(cls, text)
        picture._draw = draw
        return picture

    def __reduce__(self) -> Any:
        return str, (str(self),)  # a copy elsewhere is the text alone

    def draw(self, *args: Any, **options: Any) -> Drawing:
        """The picture; of a program with `stage=`, as it was after the pass of that name.

        Args:
            *args, **options: of the drawing function.
        """
        return self._draw(*args, **options)

    def _repr_svg_(self) -> str:
        return self.draw().svg()


def _few(lines: list[str]) -> list[str]:
    return (
        lines
        if len(lines) <= _MOST_LINES
        else [*lines[: _MOST_LINES - 1], f"and {len(lines) - _MOST_LINES + 1} more"]
    )


# ---- programs ----------------------------------------------------------------------------------------------

STAGES = ("recorded", *_C._Program.passes)


class ProgramText(GraphText):
    """The text of a program of kernels, which knows what each pass made of it."""

    _recorded: Callable[[], Any]
    _least: dict[str, int]

    @classmethod
    def of(cls, text: str, recorded: Callable[[], Any], **least: int) -> ProgramText:
        """Of a compiled function's program, what gives the program as it was before its passes, and how the
        passes were set."""
        picture = cls(text, lambda stage=None: picture._picture(stage))
        picture._recorded, picture._least = recorded, least
        return picture

    def after(self, stage: str) -> GraphText:
        """The program as it was recorded ("recorded"), or after a pass and those before it, each in turn:
        "remove_dead", "layout", "schedule", "recompute", "fuse", "fuse_epilogues", "fuse_prologues", even if
        the function was compiled without it.

        Raises:
            ValueError: another stage.
        """
        program = self._at(stage)
        return GraphText(program.text(), lambda: _program(program, stage))

    def _at(self, stage: str) -> Any:
        if stage not in STAGES:
            raise ValueError(f"a program has the stages {', '.join(STAGES)}; got {stage!r}")
        program = self._recorded()
        for name in STAGES[1 : STAGES.index(stage) + 1]:
            program.run_pass(name, **self._least)
        return program

    def _picture(self, stage: str | None) -> Drawing:
        return _program(_C._Program.parse(self) if stage is None else self._at(stage), stage)


def bytes_in_use(program: Any) -> list[tuple[int, int, int]]:
    """For each step of a `_C._Program` the bytes in use while it runs: of memories that came in, of those
    that were made and stay, of those that are freed again. What one fused step alone uses has no memory."""
    memories, instructions, steps = program.memories, program.instructions, program.steps
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for k, step in enumerate(steps):
        for _, _, read, written in (instructions[i] for i in step):
            for m, _ in (*read, *written):
                first.setdefault(m, k)
                last[m] = k
    came = sum(size for size, is_in, *_ in memories if is_in)
    change = [[0, 0] for _ in range(len(steps) + 1)]
    for m, (size, is_in, is_out, _) in enumerate(memories):
        if is_in or m not in first:
            continue
        if is_out:
            change[first[m]][0] += size
        elif first[m] < last[m] or len(steps[first[m]]) == 1:
            change[first[m]][1] += size
            change[last[m] + 1][1] -= size
    out, stays, temporary = [], 0, 0
    for k in range(len(steps)):
        stays, temporary = stays + change[k][0], temporary + change[k][1]
        out.append((came, stays, temporary))
    return out


class _ProgramGraph:
    """Builds the graph of a program: a node for each step, with nodes in it where it is fused."""

    def __init__(self, program: Any) -> None:
        self.memories, self.instructions = program.memories, program.instructions
        self.graph = Graph()
        self.in_backward = self._backward()
        self.backward_begins = min(self.in_backward, default=len(self.instructions))
        self.writer: dict[int, tuple[int, int, bool]] = {}  # node, node in it, whether of the backward pass
        for k, step in enumerate(program.steps):
            self._step(k, step)
        running = {i for step in program.steps for i in step}
        for i in range(len(self.instructions)):
            if i not in running:
                self._step(None, [i])
        self._outputs()

    def _backward(self) -> set[int]:
        """What a backward pass recorded, and its initial gradients: read by it, made by no instruction."""
        backward = {i for i, (_, in_backward, *_) in enumerate(self.instructions) if in_backward}
        readers: dict[int, set[int]] = {}
        for i, (_, _, read, _) in enumerate(self.instructions):
            for m, _ in read:
                readers.setdefault(m, set()).add(i)
        for i, (_, _, read, written) in enumerate(self.instructions):
            needed_by = set().union(*(readers.get(m, set()) for m, _ in written))
            if not read and needed_by and needed_by <= backward:
                backward.add(i)
        return backward

    def _role(self, i: int, dead: bool) -> str:
        written = self.instructions[i][3]
        if dead:
            return "dead"
        if any(self.memories[m][3] is not None for m, _ in written):
            return "recomputed"
        return "backward" if i in self.in_backward else "update" if i > self.backward_begins else "forward"

    def _step(self, k: int | None, step: list[int]) -> None:
        fused, inside = len(step) > 1, Graph()
        column = int(self._role(step[0], k is None) in ("backward", "update", "recomputed"))
        if fused:
            top = self.graph.add(Vertex([f"{k} fused"], "fused", inner=[inside], column=column))
        inputs: dict[str, None] = {}
        for i in step:
            name, _, read, written = self.instructions[i]
            in_backward = i in self.in_backward
            title = name if fused or k is None else f"{k} {name}"
            lines = [title, *_few([f"%{m} {shape}" for m, shape in written])]
            node = Vertex(lines, self._role(i, k is None), f"instruction {i}, as recorded")
            if fused:
                at = inside.add(node)
            else:
                node.column = column
                top = at = self.graph.add(node)
            for n, (m, shape) in enumerate((*read, *written)):
                if m in self.writer:
                    source, source_inside, source_in_backward = self.writer[m]
                    saved = in_backward and not source_in_backward and k is not None
                    if source == top:
                        inside.connect(source_inside, at, saved)
                    else:
                        self.graph.connect(source, top, saved)
                elif n < len(read):
                    inputs[f"%{m} {shape}"] = None
            if k is not None:
                for m, _ in written:
                    self.writer[m] = top, at, in_backward
        if inputs:
            self.graph.connect(self.graph.add(Vertex(_few(list(inputs)), "input", column=column)), top)

    def _outputs(self) -> None:
        seen: dict[int, list[str]] = {}
        for m, (size, _, is_out, _) in enumerate(self.memories):
            if is_out and m in self.writer:
                seen.setdefault(self.writer[m][0], []).append(f"%{m} {_size(size)}")
        for top, lines in seen.items():
            column = self.graph.nodes[top].column
            self.graph.connect(top, self.graph.add(Vertex(_few(lines), "output", column=column)))


def _program(program: Any, stage: str | None) -> Drawing:
    steps, count = len(program.steps), sum(map(len, program.steps))
    when = {None: "", "recorded": ", as recorded"}.get(stage, f", after {stage}")
    return Drawing(
        _ProgramGraph(program).graph,
        f"program{when}: {count} instructions in {steps} steps",
        bytes_in_use(program),
    )


# ---- graphs of ops, the tape, fx ---------------------------------------------------------------------------

_BRANCHES = {"cond": "if true | else", "while_loop": "condition | body", "scan": "body"}


def _size_text(size: int) -> str:
    """A size of a value: a number, an expression, or ? where only a run tells."""
    if not isinstance(size, _C._Expr):
        return "?" if size is None else str(size)
    terms = ["*".join([*([str(f)] if f != 1 or not names else []), *names]) for f, names in size.terms]
    total = " + ".join(terms) or "0"
    return total if size.divisor == 1 else f"({total})/{size.divisor}"


def _references(x: Any) -> list[int]:
    if isinstance(x, _C._Ref):
        return [x.id]
    return [i for item in x for i in _references(item)] if isinstance(x, (list, tuple)) else []


def _op_graph(ops: Any) -> Graph:
    graph, nodes, values = Graph(), {}, ops.values

    def text(i: int) -> str:
        kind, dtype, sizes, name, _ = values[i]
        named = name if kind == "constant" else f"%{i}"
        return f"{named} {str(dtype).removeprefix('torch.')}[{', '.join(map(_size_text, sizes))}]"

    for i in ops.inputs:
        nodes[i] = graph.add(Vertex([text(i)], "input"))
    for name, args, results, source in ops.calls:
        branches = args.pop("graphs", [])
        title = f"{name}: {_BRANCHES[name]}" if branches else name
        lines = [title, *_few([text(i) for i in results if i is not None])]
        numbers = [f"{key}={x}" for key, x in args.items() if not _references(x) and x is not None]
        tip = "\n".join([source, *numbers])
        at = graph.add(
            Vertex(lines, "control" if branches else "forward", tip, [_op_graph(b) for b in branches])
        )
        constants: dict[str, None] = {}
        for i in _references(list(args.values())):
            if i in nodes:
                graph.connect(nodes[i], at)
            else:
                constants[text(i)] = None
        if constants:
            graph.connect(graph.add(Vertex(_few(list(constants)), "input")), at)
        nodes.update((i, at) for i in results if i is not None)
    for i in dict.fromkeys(ops.outputs):
        at = graph.add(Vertex([text(i)], "output"))
        if i in nodes:
            graph.connect(nodes[i], at)
    return graph


def _shape_text(t: _C.TensorBase) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"


def _saved_lines(function: Any, names: dict[int, str]) -> list[str]:
    """What a node keeps for its backward: names of leaves, or dtypes and shapes."""
    try:
        saved = [t for t in function.saved_tensors if t is not None]
    except RuntimeError as error:
        return ["saved: freed by a backward" if "freed" in str(error) else "saved: changed since"]
    return _few([f"saved {names.get(id(t), '')} {_shape_text(t)}".replace("  ", " ") for t in saved])


def draw_tape(roots: Sequence[_C.TensorBase], names: dict[str, _C.TensorBase] | None = None) -> Drawing:
    """The nodes that a backward pass from the tensors runs, in the direction of gradients.

    Args:
        roots: as the loss.
        names: tensors whose names are shown.
    """
    graph, called = Graph(), {id(t): name for name, t in (names or {}).items()}
    places: dict[Any, int] = {}

    def known(function: Any) -> int:
        if function not in places:
            variable = getattr(function, "variable", None)
            if variable is None:
                node = Vertex([function.name(), *_saved_lines(function, called)], "backward")
            else:
                node = Vertex([f"{called.get(id(variable), 'leaf')} {list(variable.shape)}"], "leaf")
            places[function] = graph.add(node)
            open_.append(function)
        return places[function]

    open_: list[Any] = []
    for root in roots:
        start = graph.add(Vertex([f"{called.get(id(root), '')} {_shape_text(root)}".lstrip()], "input"))
        if root.grad_fn is not None:
            graph.connect(start, known(root.grad_fn))
    for function in open_:  # which grows
        for following, _ in function.next_functions:
            if following is not None:
                graph.connect(places[function], known(following))
    return Drawing(graph, "tape of a tensor" if len(roots) == 1 else f"tape of {len(roots)} tensors")


def draw_fx(fx_graph: Any, skipped: Collection[Any] = ()) -> Graph:
    """The nodes of an `fx.Graph`, but for those that are `skipped`, and what takes what.

    Args:
        fx_graph: of torch.fx.
        skipped: nodes.
    """
    graph, nodes = Graph(), {}
    roles = {"placeholder": "input", "get_attr": "input", "output": "output"}
    for node in fx_graph.nodes:
        if node in skipped:
            continue
        target = (
            node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target)
        )
        lines = [node.name] if node.op in roles else [node.name, f"{node.op} {target}"]
        nodes[node] = graph.add(Vertex(lines, roles.get(node.op, "forward"), node.format_node() or ""))
        for source in node.all_input_nodes:
            if source in nodes:
                graph.connect(nodes[source], nodes[node])
    return graph


def draw(what: Any, *, names: dict[str, _C.TensorBase] | None = None, **options: Any) -> Drawing:
    """The picture of a graph.

    Args:
        what: a tensor (the tape that its backward pass runs), an exported, traced or scripted program, a
            program of `torch.compile(f).explain()`, an `fx.Graph` or `fx.GraphModule`.
        names: of leaves, for the tape: `dict(model.named_parameters())`.
        options: `stage`, of a compiled program.

    Raises:
        TypeError: something else.
    """
    if isinstance(what, _C.TensorBase):
        return draw_tape([what], names)
    if isinstance(what, _C._OpGraph):
        return Drawing(_op_graph(what), f"graph of {len(what.calls)} calls of ops")
    if isinstance(what, _C._Program):
        return _program(what, None)
    if isinstance(what, HasGraph):
        return draw(what._graph_function().graph)
    if hasattr(what, "draw"):
        return what.draw(**options)
    graph = getattr(what, "graph", what)
    if not hasattr(graph, "nodes"):
        raise TypeError(f"draw: expected a tensor, a graph or a program, got {type(what).__name__}")
    return Drawing(draw_fx(graph), f"fx graph of {len(list(graph.nodes))} nodes")
