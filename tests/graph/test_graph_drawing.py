"""Pictures of graphs: the layout against its definition, what is drawn against what is known of the program,
SVG and DOT against their grammars."""

from __future__ import annotations

import pickle
import random
import re
import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import scipy.optimize
import warptape as torch
import warptape.nn.functional as F
from warptape import _C, nn
from warptape._graph_layout import Graph, Vertex, crossings, layers_of, nearest, place
from warptape.export import export
from warptape.fx import GraphModule, Tracer, symbolic_trace
from warptape.fx.passes.graph_drawer import FxGraphDrawer
from warptape.graph_drawing import STAGES, Drawing, bytes_in_use, draw

SVG = "{http://www.w3.org/2000/svg}"

# ---- layout ------------------------------------------------------------------------------------------------


def random_graph(rng, count, share=2, columns=1):
    graph = Graph()
    for i in range(count):
        inner = [random_graph(rng, rng.randint(1, 4))] if rng.random() < 0.15 and count > 4 else []
        column = rng.randrange(columns)
        graph.add(Vertex(["x" * rng.randint(1, 12)] * rng.randint(1, 4), inner=inner, column=column))
        for _ in range(rng.randint(0, share) if i else 0):
            graph.connect(rng.randrange(i), i, rng.random() < 0.1)
    return graph


def test_layers_are_longest_paths():
    rng = random.Random(1)
    for _ in range(50):
        count = rng.randint(1, 12)
        edges = [(a, b) for b in range(count) for a in range(b) if rng.random() < 0.3]
        order = rng.sample(range(count), count)
        edges = [(order[a], order[b]) for a, b in edges]

        def longest(n, edges=edges):
            return max((longest(a) + 1 for a, b in edges if b == n), default=0)

        got = layers_of(count, edges)
        for n in range(count):
            leads_to = [got[b] for a, b in edges if a == n]
            starts = not any(b == n for _, b in edges)
            assert got[n] == (min(leads_to) - 1 if starts and leads_to else longest(n))
    with pytest.raises(ValueError, match="cycle"):
        layers_of(3, [(0, 1), (1, 2), (2, 1)])


def test_crossings_are_counted():
    rng = random.Random(2)
    for _ in range(50):
        edges = [(rng.randrange(6), rng.randrange(6)) for _ in range(rng.randint(0, 15))]
        pairs = [(a, b) for i, a in enumerate(edges) for b in edges[:i]]
        want = sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in pairs)
        assert crossings(range(6), edges) == want


def test_places_are_the_nearest():
    rng = np.random.default_rng(3)
    for _ in range(20):
        count = int(rng.integers(1, 8))
        wanted, gaps = rng.uniform(-50, 50, count), rng.uniform(1, 30, count - 1)
        got = np.array(nearest(list(wanted), list(gaps)))
        assert (np.diff(got) >= gaps - 1e-9).all()
        best = scipy.optimize.minimize(
            lambda x, wanted=wanted: ((x - wanted) ** 2).sum(),
            np.cumsum([0.0, *gaps]),
            method="SLSQP",
            constraints={"type": "ineq", "fun": lambda x, gaps=gaps: np.diff(x) - gaps},
        )
        assert ((got - wanted) ** 2).sum() <= best.fun + 1e-3


def check_layout(placed):
    """Boxes lie in the picture, apart; below what leads to them in the first column, above it in the second.
    Edges touch no box between their ends."""
    boxes = placed.boxes
    for i, a in enumerate(boxes):
        assert a.x >= -1e-6 and a.x + a.width <= placed.width + 1e-6
        assert a.y >= -1e-6 and a.y + a.height <= placed.height + 1e-6
        for b in boxes[:i]:
            apart = a.x + a.width < b.x or b.x + b.width < a.x
            assert apart or a.y + a.height < b.y or b.y + b.height < a.y
        for x, y, held in a.inner:
            assert x + held.width <= a.width and y + held.height <= a.height
            check_layout(held)
    for edge, points, arc in zip(placed.graph.edges, placed.paths, placed.arcs, strict=True):
        a, b = boxes[edge.source], boxes[edge.target]
        columns = placed.graph.nodes[edge.source].column, placed.graph.nodes[edge.target].column
        assert columns != (0, 0) or b.y > a.y + a.height
        assert columns != (1, 1) or b.y + b.height < a.y
        if arc:
            assert len(points) == 4
            continue
        assert columns in ((0, 0), (1, 1))
        leaves, comes = (a.y + a.height, b.y) if columns == (0, 0) else (a.y, b.y + b.height)
        assert points[0][1] == pytest.approx(leaves) and points[-1][1] == pytest.approx(comes)
        assert a.x <= points[0][0] <= a.x + a.width and b.x <= points[-1][0] <= b.x + b.width
        for x, y in points[1:-1]:
            inside = [c for c in boxes if c.x < x < c.x + c.width and c.y < y < c.y + c.height]
            assert not inside


def test_layouts_of_random_graphs():
    rng = random.Random(4)
    for _ in range(60):
        check_layout(place(random_graph(rng, rng.randint(1, 40))))
        check_layout(place(random_graph(rng, rng.randint(1, 40), columns=2)))
    check_layout(place(Graph()))


def test_large_graphs_take_no_long():
    begin = time.perf_counter()
    Drawing(random_graph(random.Random(5), 2000, 1), "large").svg()
    x = torch.ones(2, requires_grad=True)
    for _ in range(5000):
        x = x + 1
    assert len(draw(x).graph.nodes) == 5002 and draw(x).svg()
    assert time.perf_counter() - begin < 30  # 3 s where nothing else runs


# ---- what is drawn -----------------------------------------------------------------------------------------


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = self.first(x)
        return self.second(h.sigmoid() * h)


def compiled_step():
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, target = torch.randn(32, 8), torch.randn(32, 4)

    def step():
        unused = x @ x.T  # noqa: F841
        loss = F.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    compiled = torch.compile(step)
    compiled.region.adaptive = False
    compiled()
    return compiled.explain().programs[0]


def titles(graph, role=None):
    """The first lines of the nodes, those in clusters too, without the numbers of steps."""
    out = []
    for node in graph.nodes:
        if role in (None, node.role) and not node.inner:
            out.append(re.sub(r"^\d+ ", "", node.lines[0]))
        for inner in node.inner:
            out += titles(inner, role)
    return out


def test_forward_and_backward():
    program = compiled_step()
    graph = program.draw().graph
    assert titles(graph, "forward") == ["linear", "sigmoid", "mul", "linear", "mse_loss"]
    backward = titles(graph, "backward")
    assert "mse_loss_backward" in backward and "sigmoid_backward" in backward
    assert backward.count("matmul") == 3  # two gradients of weights, and one of what the second layer read
    assert backward.count("copy") == 1  # the gradient that the pass begins with
    assert all("sgd" in name or "add" in name for name in titles(graph, "update"))
    assert titles(graph, "dead") == ["matmul"]


def test_what_is_saved():
    """Saved are the results of forward that autograd's formulas name: h and sigmoid(h) of the product, its
    result for the second weight, the prediction for the loss."""
    program = compiled_step()
    graph = program.draw("schedule").graph
    saved = {
        (re.sub(r"^\d+ ", "", graph.nodes[e.source].lines[0]), graph.nodes[e.target].lines[0].split()[1])
        for e in graph.edges
        if e.saved
    }
    assert saved == {
        ("linear", "mul"),
        ("sigmoid", "mul"),
        ("sigmoid", "sigmoid_backward"),
        ("mul", "matmul"),
        ("linear", "mse_loss_backward"),
    }


def test_what_was_fused():
    program = compiled_step()
    for stage in STAGES:
        drawing, text = program.draw(stage=stage), program.after(stage)
        clusters = [node for node in drawing.graph.nodes if node.role == "fused"]
        assert len(clusters) == text.count("fused {") and bool(clusters) == stage.startswith("fuse")
        assert drawing.dot().count("subgraph") == len(clusters)
        assert f"{len(re.findall(' = ', text)) - text.count('dead')} instructions" in drawing.title
    assert program.after("fuse_epilogues") == program
    assert "dead" not in program.after("recorded") and program.after("remove_dead").count("dead") == 1
    assert (
        isinstance(program, str)
        and program.draw(stage="recorded").svg() == program.after("recorded").draw().svg()
    )
    copy = pickle.loads(pickle.dumps(program))
    assert copy == program and type(copy) is str
    with pytest.raises(
        ValueError,
        match="recorded, remove_dead, layout, schedule, recompute, fuse, fuse_epilogues, fuse_prologues; got",
    ):
        program.draw(stage="melt")


@pytest.mark.parametrize("passes", ["", "schedules", "recomputes", "fuses", "schedules recomputes fuses"])
def test_bytes_in_use_are_those_that_are_measured(passes):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
    model, x = nn.Sequential(*layers), torch.randn(512, 64)

    def step():
        loss = model(x).square().mean()
        loss.backward()
        gradients = [p.grad for p in model.parameters()]
        model.zero_grad()
        return loss, *gradients

    compiled = torch.compile(step)
    compiled.region.adaptive = False
    for name in ("schedules", "recomputes", "fuses"):
        setattr(compiled.region, name, name in passes)
    compiled()
    before = _C._memory_stats()["allocated_bytes"]
    _C._reset_peak_memory()
    compiled()
    measured = _C._memory_stats()["peak_allocated_bytes"] - before
    (program,) = compiled.explain().programs
    use = bytes_in_use(_C._Program.parse(program))
    counted = max(stays + temporary for _, stays, temporary in use)
    # Of each memory whole cache lines; and what a product packs while its epilogue's results have memory.
    assert counted <= measured <= 1.01 * counted + 64 * len(use) + 4 * 64 * 256
    came_in = 4 * (x.numel() + sum(p.numel() for p in model.parameters()))
    assert all(came == came_in + 4 for came, *_ in use)  # and the gradient of the loss


def test_the_tape():
    model = Network()
    x = torch.randn(3, 8)
    drawing = draw(model(x).sum(), names=dict(model.named_parameters()))
    assert titles(drawing.graph, "leaf") == [
        "second.weight [4, 16]",
        "second.bias [4]",
        "first.weight [16, 8]",
        "first.bias [16]",
    ]
    backward = titles(drawing.graph, "backward")
    assert backward[:3] == ["SumBackward0", "LinearBackward0", "MulBackward0"]
    product = next(i for i, n in enumerate(drawing.graph.nodes) if n.lines[0] == "MulBackward0")
    linear = [i for i, n in enumerate(drawing.graph.nodes) if n.lines[0] == "LinearBackward0"][-1]
    paths = {(e.source, e.target) for e in drawing.graph.edges}
    assert (product, linear) in paths and sum(b == linear for _, b in paths) == 2  # h is one node
    assert titles(draw(x).graph) == ["float32[3, 8]"]
    assert drawing.graph.nodes[product].lines[1:] == ["saved float32[3, 16]"] * 2
    assert drawing.graph.nodes[linear].lines[1:] == ["saved float32[3, 8]"]  # the data wants no gradient


def test_the_tape_from_autograd():
    w = torch.ones(4, 3, requires_grad=True)
    x = torch.ones(2, 3, requires_grad=True)
    y = F.linear(x, w)
    pair = torch.autograd.graph.draw([y.exp(), y.sum()], {"weight": w, "input": x})
    assert pair.title == "tape of 2 tensors" and isinstance(pair, Drawing)
    by_title = {node.lines[0]: node.lines[1:] for node in pair.graph.nodes}
    assert by_title["ExpBackward0"] == ["saved float32[2, 4]"]
    assert sorted(by_title["LinearBackward0"]) == ["saved input float32[2, 3]", "saved weight float32[4, 3]"]
    assert titles(pair.graph, "leaf") == ["input [2, 3]", "weight [4, 3]"]
    linear = next(i for i, n in enumerate(pair.graph.nodes) if n.lines[0] == "LinearBackward0")
    assert sum(e.target == linear for e in pair.graph.edges) == 2  # y is one node
    assert "saved weight float32[4, 3]" in pair._repr_svg_() and "saved weight" in pair.dot()
    y.sum().backward()
    freed = torch.autograd.graph.draw(y)
    assert freed.graph.nodes[1].lines == ["LinearBackward0", "saved: freed by a backward"]
    z = w * 2
    square = z * z
    z.add_(1)
    assert torch.autograd.graph.draw(square).graph.nodes[1].lines[1] == "saved: changed since"
    for wrong in (3, [], [w, 3]):
        with pytest.raises(TypeError, match=r"graph\.draw"):
            torch.autograd.graph.draw(wrong)


def test_exported_programs_and_control_flow():
    def f(x):
        return torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a.exp() - 1, (x + 1,))

    program = export(f, (torch.ones(3),))
    graph = program.draw().graph
    assert titles(graph, "forward") == ["sum", "gt", "add", "mul", "exp", "sub"]
    (control,) = (n for n in graph.nodes if n.role == "control")
    assert control.lines[0] == "cond: if true | else" and [len(g.nodes) for g in control.inner] == [3, 4]
    traced = torch.jit.trace(f, torch.ones(3))
    assert traced.graph.draw().svg() == draw(traced).svg()
    assert titles(traced.graph.draw().graph, "forward") == titles(graph, "forward")  # sizes are symbols there
    assert str(traced.graph) == traced.graph and "cond(" in traced.graph
    sizes = export(
        lambda x: x.view(-1, 2), (torch.ones(4),), dynamic_shapes=({0: 2 * torch.export.Dim("n")},)
    )
    assert "%0 float32[2*n]" in titles(sizes.draw().graph)
    model = Network()
    assert draw(export(model, (torch.ones(2, 8),)).graph_module).title.startswith("fx graph")
    with pytest.raises(TypeError, match="expected a tensor, a graph or a program, got int"):
        draw(3)


def test_fx_graph_drawer(tmp_path):
    inner = symbolic_trace(Network())

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.inner = nn.Parameter(torch.ones(8)), inner

        def forward(self, x):
            return self.inner(x * self.weight)

    tracer = Tracer()
    tracer.is_leaf_module = lambda m, name: m is inner
    outer = Outer()
    module = GraphModule(outer, tracer.trace(outer))
    drawer = FxGraphDrawer(module, "net")
    assert list(drawer.get_all_dot_graphs()) == ["net", "net_inner"]
    main = drawer.get_main_dot_graph()
    assert titles(main.graph) == ["x", "weight", "mul", "inner", "output"]
    assert titles(drawer.get_submod_dot_graph("inner").graph, "forward") == [
        "first",
        "sigmoid",
        "mul",
        "second",
    ]
    assert check_dot(main.to_string()) == 5
    assert main.write_svg(tmp_path / "a.svg") and ElementTree.parse(tmp_path / "a.svg")
    assert main.write_raw(tmp_path / "a") and (tmp_path / "a").read_text() == main.to_string()
    for skip in ("ignore_getattr", "ignore_parameters_and_buffers"):
        graph = FxGraphDrawer(module, "net", **{skip: True}).get_dot_graph().graph
        assert titles(graph) == ["x", "mul", "inner", "output"] and len(graph.edges) == 3


# ---- SVG and DOT -------------------------------------------------------------------------------------------

DOT = re.compile(
    r"""\s*(?:(?P<open>(?:digraph|subgraph\ \w+)\ \{)|(?P<close>\})
    |(?P<edge>\w+\ ->\ \w+\ \[(?P<look>(?:(?:\w+=(?:\w+|"(?:[^"\\]|\\.)*"))(?:,\ )?)*)\];)
    |(?P<node>\w+\ \[(?:\w+=(?:\w+|"(?:[^"\\]|\\.)*")(?:,\ )?)*\];)
    |(?P<fact>(?:\w+=(?:\w+|"(?:[^"\\]|\\.)*");\ ?)+))""",
    re.VERBOSE,
)


def check_dot(text):
    """Every line is a statement of DOT's grammar, and the ends of edges are nodes."""
    at = depth = 0
    nodes, ends = set(), []
    while text[at:].strip():
        found = DOT.match(text, at)
        assert found, text[at : at + 80]
        at = found.end()
        depth += bool(found["open"]) - bool(found["close"])
        if found["node"]:
            name = found["node"].split()[0]
            assert name in ("node",) or name not in nodes
            nodes.add(name)
        if found["edge"]:
            ends += found["edge"].split(" [")[0].split(" -> ")
        assert depth >= 0
    assert depth == 0 and set(ends) <= nodes
    return len(nodes) - 1  # less the defaults


def count_of(graph):
    return len(graph.nodes) + sum(count_of(g) for n in graph.nodes for g in n.inner)


def pictures():
    hostile = Vertex(['a"b\\', "<&>\x00\ud800\uffff\n\t"], tip="<\x02")
    yield "hostile", Drawing(Graph([hostile]), '</text>"\\')
    yield "step", compiled_step().draw()
    yield "recorded", compiled_step().draw(stage="recorded")
    yield "tape", draw(Network()(torch.randn(2, 8)).sum())
    yield (
        "control",
        export(lambda x: torch.cond(x.sum() > 0, torch.exp, torch.neg, (x,)), (torch.ones(2),)).draw(),
    )
    yield "empty", Drawing(Graph(), "nothing")


@pytest.mark.parametrize("name", ["hostile", "step", "recorded", "tape", "control", "empty"])
def test_well_formed(name, tmp_path):
    drawing = dict(pictures())[name]
    root = ElementTree.fromstring(drawing._repr_svg_())
    assert root.tag == SVG + "svg" and float(root.get("width")) > 0
    groups = root.findall(f".//{SVG}g")
    assert len(groups) == count_of(drawing.graph) == check_dot(drawing.dot())
    drawn = [t.text for g in groups for t in g.findall(f"{SVG}text")]
    lines = [line for node in drawing.graph.nodes for line in node.lines]
    assert name == "hostile" or set(lines) <= set(drawn)
    width, height = float(root.get("width")), float(root.get("height"))
    for box in root.findall(f".//{SVG}rect")[1:]:
        x, y, w, h = (float(box.get(key)) for key in ("x", "y", "width", "height"))
        assert x >= 0 and x + w <= width + 1 and y >= 0 and y + h <= height + 1
    polygons = root.findall(f".//{SVG}polygon")
    assert len(polygons) == (3 if drawing.memory else 0)
    drawing.save(tmp_path / "a.svg")
    drawing.save(tmp_path / "a.dot")
    ElementTree.parse(tmp_path / "a.svg")
    assert (tmp_path / "a.dot").read_text(encoding="utf-8") == drawing.dot()
    with pytest.raises(ValueError, match=r"\.svg, \.dot or \.gv"):
        drawing.save(tmp_path / "a.png")


def test_checks_find_what_is_wrong():
    good = compiled_step().draw()
    check_layout(place(good.graph))
    with pytest.raises(AssertionError):
        check_dot(good.dot().replace("n1 [", "n0 [", 1))
    with pytest.raises(AssertionError):
        check_dot(good.dot()[:-2])
    with pytest.raises(AssertionError):
        check_dot(good.dot().replace('"];', "];", 1))
    placed = place(good.graph)
    placed.boxes[1].x, placed.boxes[1].y = placed.boxes[0].x, placed.boxes[0].y
    with pytest.raises(AssertionError):
        check_layout(placed)
