"""warptape.fx: Interpreter, Transformer, ShapeProp and replace_pattern."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import warptape as torch
from warptape import fx, nn
from warptape.fx.passes.shape_prop import ShapeProp, TensorMetadata

F = nn.functional


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.act = nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Tanh())
        self.p = nn.Parameter(torch.ones(2))

    def forward(self, x: Any, k: int = 3, *rest: Any) -> Any:
        return self.act(self.lin(x) + self.p).mul(k)


def test_an_interpreter_runs_the_graph() -> None:
    traced = fx.symbolic_trace(Small())
    x = torch.randn(4, 2)
    run = fx.Interpreter(traced)
    assert torch.equal(run.run(x), traced(x))
    assert torch.equal(run.run(x, 5, 6, 7), traced(x, 5, 6, 7))
    nodes = {node.name: node for node in traced.graph.nodes}
    assert torch.equal(run.run(x, initial_env={nodes["lin"]: torch.zeros(4, 2)}), torch.ones(4, 2).tanh() * 3)
    assert len(run.env) < len(fx_env(traced, x))
    given = [x, 2, []]
    assert torch.equal(run.boxed_run(given), traced(x, 2))
    assert given == []


def fx_env(traced: fx.GraphModule, x: Any) -> dict[fx.Node, Any]:
    run = fx.Interpreter(traced, garbage_collect_values=False)
    run.run(x)
    return run.env


def test_values_are_dropped_behind_their_last_use() -> None:
    class Watches(fx.Interpreter):
        most = 0

        def run_node(self, n: fx.Node) -> Any:
            self.most = max(self.most, len(self.env))
            return super().run_node(n)

    def chain(x: Any) -> Any:
        for _ in range(20):
            x = x + 1
        return x

    run = Watches(fx.symbolic_trace(chain))
    assert run.run(0) == 20
    assert run.most == 1


def test_methods_of_an_interpreter_are_overridden() -> None:
    class Counts(fx.Interpreter):
        def __init__(self, module: nn.Module) -> None:
            super().__init__(module)
            self.calls: list[str] = []

        def run_node(self, n: fx.Node) -> Any:
            self.calls.append(n.op)
            return super().run_node(n)

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if target is torch.sigmoid:
                return torch.neg(*args, **kwargs)
            return super().call_function(target, args, kwargs)

        def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_method("relu" if target == "neg" else target, args, kwargs)

    run = Counts(fx.symbolic_trace(lambda x: torch.sigmoid(x).neg()))
    x = torch.randn(10)
    assert torch.equal(run.run(x), torch.relu(-x))
    assert run.calls == ["placeholder", "call_function", "call_method", "output"]


def test_an_error_says_at_which_node() -> None:
    traced = fx.symbolic_trace(Small())
    with pytest.raises(
        RuntimeError, match=r"(?s)layer expects 2.*While executing %lin : \[num_users=1\] = call_module"
    ):
        fx.Interpreter(traced).run(torch.ones(3))
    with pytest.raises(
        RuntimeError, match="Expected positional argument for parameter x, but one was not passed"
    ):
        fx.Interpreter(traced).run()
    with pytest.raises(RuntimeError, match=r"boxed_run expected 3 arguments for placeholders but received 1"):
        fx.Interpreter(traced).boxed_run([1])
    with pytest.raises(RuntimeError, match=r"Node referenced nonexistent target lin\.no"):
        fx.Interpreter(traced).fetch_attr("lin.no")


def test_a_graph_of_another_module_is_run() -> None:
    traced = fx.symbolic_trace(lambda x: x + 1)
    graph = fx.symbolic_trace(lambda x: x * 5).graph
    assert fx.Interpreter(traced, graph=graph).run(2) == 10


def test_a_transformer_makes_a_module() -> None:
    class Swaps(fx.Transformer):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_function(operator.sub if target is operator.add else target, args, kwargs)

        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            if isinstance(self.fetch_attr(target), nn.Tanh):
                return args[0] * 2
            return super().call_module(target, args, kwargs)

    traced = fx.symbolic_trace(Small())
    made = Swaps(traced).transform()
    x = torch.randn(2)
    assert torch.equal(made(x), torch.relu(traced.lin(x) - traced.p) * 2 * 3)
    assert [n.name for n in made.graph.nodes] == (
        ["x", "k", "_rest", "lin", "p", "sub", "act_0", "mul", "mul_1", "output"]
    )
    same = fx.Transformer(traced).transform().graph
    assert [(n.op, n.name, n.target) for n in same.nodes] == [
        (n.op, n.name, n.target) for n in traced.graph.nodes
    ]


def test_a_transformer_of_trees() -> None:
    traced = fx.symbolic_trace(lambda x: [x["a"] + 1, {"b": x["a"]}], concrete_args={"x": {"a": fx.PH}})
    assert fx.Transformer(traced).transform()({"a": 1}) == [2, {"b": 1}]


def test_shapes_are_noted() -> None:
    traced = fx.symbolic_trace(Small())
    out = ShapeProp(traced).propagate(torch.randn(5, 2))
    assert out.shape == (5, 2)
    meta = {node.name: node.meta for node in traced.graph.nodes}
    assert meta["lin"]["tensor_meta"] == TensorMetadata(
        torch.Size([5, 2]), torch.float32, True, (2, 1), torch.contiguous_format, False, {}
    )
    assert meta["p"]["type"] is nn.Parameter
    assert meta["k"] == {"type": int}
    both = fx.symbolic_trace(lambda x: x.max(0))
    ShapeProp(both).propagate(torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last))
    x, found, _ = both.graph.nodes
    assert x.meta["tensor_meta"].memory_format == torch.channels_last
    assert [m.dtype for m in found.meta["tensor_meta"]] == [torch.float32, torch.int64]
    with pytest.raises(RuntimeError, match="ShapeProp error for: node=%lin"):
        ShapeProp(traced).propagate(torch.ones(3))


def code(module: fx.GraphModule) -> list[str]:
    return [line.strip().partition(";")[0] for line in module.code.strip().splitlines()[1:]]


def test_a_pattern_is_replaced_everywhere() -> None:
    def f(x: Any, w1: Any, w2: Any) -> Any:
        m1, m2 = torch.cat([w1, w2]).sum(), torch.cat([w1, w2]).sum()
        return x + torch.max(m1) + torch.max(m2)

    traced = fx.symbolic_trace(f)
    matches = fx.replace_pattern(
        traced, lambda a, b: torch.cat([a, b]).sum(), lambda a, b: torch.stack([a, b]).mean()
    )
    assert [m.anchor.name for m in matches] == ["sum_1", "sum_1"]
    assert {p.name: n.name for p, n in matches[1].nodes_map.items()} == {
        "sum_1": "sum_2",
        "cat": "cat_1",
        "a": "w1",
        "b": "w2",
    }
    traced.graph.lint()
    x, w1, w2 = (torch.randn(3) for _ in range(3))
    mean = torch.stack([w1, w2]).mean()
    assert torch.allclose(traced(x, w1, w2), x + mean + mean)


REWRITES: dict[str, Any] = {
    "overlapping": (
        lambda x: torch.neg(torch.neg(torch.neg(x))),
        lambda x: torch.neg(torch.neg(x)),
        lambda x: x.foo(),
        ["foo = x.foo()", "neg_2 = torch.neg(foo)", "return neg_2"],
    ),
    "number in the pattern": (
        lambda x, y: x + y + 3,
        lambda a: a + 3,
        lambda a: a - 3,
        ["add = x + y", "sub = add - 3", "return sub"],
    ),
    "another number": (
        lambda x: x.sum(dim=1),
        lambda a: a.sum(dim=2),
        lambda a: a,
        ["sum_1 = x.sum(dim = 1)", "return sum_1"],
    ),
    "keyword": (
        lambda x: x.sum(1),
        lambda a: a.sum(dim=1),
        lambda a: a,
        ["sum_1 = x.sum(1)", "return sum_1"],
    ),
    "chain that vanishes": (lambda x, y: x + y + 3, lambda a, b: a + b, lambda a, b: a, ["return x"]),
    "used elsewhere": (
        lambda x: (lambda z: z + z.neg())(x.relu()),
        lambda a: a.relu().neg(),
        lambda a: a,
        ["relu = x.relu()", "neg = relu.neg()", "add = relu + neg", "return add"],
    ),
    "one value for two": (
        lambda x: x + x,
        lambda a, b: a + b,
        lambda a, b: a - b,
        ["add = x + x", "return add"],
    ),
    "two results": (
        lambda x: x.relu() + x.neg(),
        lambda a: (a.relu(), a.neg()),
        lambda a: (a.exp(), a.log()),
        ["exp = x.exp()", "log = x.log()", "add = exp + log", "return add"],
    ),
}


@pytest.mark.parametrize(
    ("program", "pattern", "replacement", "after"), REWRITES.values(), ids=list(REWRITES)
)
def test_rewrites(program: Any, pattern: Any, replacement: Any, after: list[str]) -> None:
    traced = fx.symbolic_trace(program)
    fx.replace_pattern(traced, pattern, replacement)
    traced.graph.lint()
    assert code(traced) == after


def test_modules_are_replaced_by_name_and_brought_along() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.act = nn.Linear(2, 2), nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.act(self.lin(x)).sigmoid()

    class Pattern(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.act(x).sigmoid()

    class Replacement(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tanh, self.w = nn.Tanh(), nn.Parameter(torch.ones(2))

        def forward(self, x: Any) -> Any:
            return self.tanh(x) * self.w

    traced = fx.symbolic_trace(Model())
    assert len(fx.replace_pattern(traced, Pattern(), Replacement())) == 1
    assert [name for name, _ in traced.named_children()] == ["lin", "tanh"]
    x = torch.randn(2)
    assert torch.equal(traced(x), traced.lin(x).tanh())


def test_a_replacement_must_take_what_the_pattern_takes() -> None:
    traced = fx.symbolic_trace(lambda x, y: x + y)
    with pytest.raises(AssertionError, match="Placeholder count mismatch: 2 vs 1"):
        fx.replace_pattern(traced, lambda a, b: a + b, lambda a: a)
    with pytest.raises(AssertionError, match="The insert point can't be None"):
        fx.replace_pattern(traced, lambda a: a, lambda a: a)
