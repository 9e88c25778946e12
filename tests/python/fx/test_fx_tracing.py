"""warptape.fx: what symbolic tracing records of modules and functions, and what it refuses."""

from __future__ import annotations

import collections
import math
import operator
import sys
from typing import Any

import pytest
import warptape as torch
from warptape import fx, nn
from warptape.fx.proxy import GraphAppendingTracer, TraceError

F = nn.functional


class Block(nn.Module):
    """Two convolutions around which the input is added, as in a ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.down = nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width))

    def forward(self, x: Any) -> Any:
        return self.relu(self.bn1(self.conv1(x)) + self.down(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.layers = nn.Sequential(Block(4), Block(4))
        self.head = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("shift", torch.zeros(2))

    def forward(self, x: Any, flat: bool = True) -> Any:
        x = self.layers(self.stem(x)).mean(dim=(2, 3))
        return self.head(x) * self.scale + self.shift


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def nodes(graph: fx.Graph) -> list[tuple[str, str]]:
    return [(node.op, node.name) for node in graph.nodes]


def test_a_residual_net_computes_the_same_and_shares_its_parameters() -> None:
    net = Net().eval()
    traced = fx.symbolic_trace(net)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(traced(x), net(x))
    assert traced.head.weight is net.head.weight
    assert not traced.training
    assert traced.state_dict().keys() == net.state_dict().keys()
    assert [name for op, name in nodes(traced.graph) if op == "call_module"] == [
        "stem",
        *(f"layers_{i}_{n}" for i in (0, 1) for n in ("conv1", "bn1", "down_0", "down_1", "relu")),
        "head",
    ]
    stack = next(n for n in traced.graph.nodes if n.name == "layers_1_down_0").meta["nn_module_stack"]
    assert list(stack) == ["layers", "layers.1", "layers.1.down", "layers.1.down.0"]
    assert stack["layers.1"] == ("layers.1", Block)


def test_a_transformer_block_computes_the_same_for_other_sizes() -> None:
    block = Attention(8, 2)
    traced = fx.symbolic_trace(block)
    for shape in ((2, 5, 8), (1, 3, 8)):
        x = torch.randn(*shape)
        assert torch.equal(traced(x), block(x))
    traced(x).sum().backward()
    assert block.qkv.weight.grad is not None


def test_functions_with_every_kind_of_argument() -> None:
    def f(x: Any, scale: float = 2.0, *rest: Any, bias: Any = None, **named: Any) -> Any:
        return torch.add(x * scale, rest[0], alpha=named["alpha"])

    traced = fx.symbolic_trace(f)
    x = torch.ones(3)
    assert traced(x, 3.0, None, x, alpha=4).tolist() == [7, 7, 7]
    places = [(n.target, n.args) for n in traced.graph.nodes if n.op == "placeholder"]
    assert places == [("x", ()), ("scale", (2.0,)), ("bias", (None,)), ("*rest", ()), ("**named", ())]


def test_a_type_that_is_not_defined_when_tracing_is_kept_as_text() -> None:
    # Python 3.14 defines such a function; before, the name must be a text.
    kind = "Elsewhere" if sys.version_info >= (3, 14) else "'Elsewhere'"
    scope: dict[str, Any] = {}
    exec(
        compile(f"def add(x: {kind}, y: float): return x + y", "elsewhere.py", "exec", dont_inherit=True),
        scope,
    )
    graph = fx.symbolic_trace(scope["add"]).graph
    assert [node.type for node in graph.nodes if node.op == "placeholder"] == ["Elsewhere", float]


def test_the_operators_of_python() -> None:
    def f(x: Any, y: Any) -> Any:
        z = (x + 1) * y - 2 / x
        z = (-z) ** 2 // 3 % 5
        z = 1 - z @ y.T
        z += abs(x)
        return (z > 0) & ~(z == y) | (x <= y) ^ (x != 1), z[0, :2], 2**x

    x, y = torch.rand(3, 3) + 1, torch.rand(3, 3) + 1
    for one, other in zip(fx.symbolic_trace(f)(x, y), f(x, y)):
        assert torch.equal(one, other)


def test_shifts_of_integers() -> None:
    traced = fx.symbolic_trace(lambda x: (x << 2, x >> 1, 1 << x))
    assert [t.tolist() for t in traced(torch.tensor([4, 2]))] == [[16, 8], [2, 1], [16, 4]]


def test_functions_methods_and_attributes() -> None:
    def f(x: Any) -> Any:
        return (
            torch.ones(2, 2) @ x,
            torch.Tensor.add(x, 1),
            x.shape[0],
            F.relu(x).sum(dim=0),
            torch.cat([x, x]),
        )

    graph = fx.symbolic_trace(f).graph
    kinds = {node.name: (node.op, node.target) for node in graph.nodes}
    assert kinds["matmul"] == ("call_method", "matmul")
    assert kinds["add"] == ("call_method", "add")
    assert kinds["getattr_1"] == ("call_function", getattr)
    assert kinds["relu"] == ("call_function", F.relu)
    assert kinds["sum_1"] == ("call_method", "sum")
    assert kinds["cat"] == ("call_function", torch.cat)
    assert kinds["_tensor_constant0"] == ("get_attr", "_tensor_constant0")


def test_unpacking_knows_its_length() -> None:
    def f(x: Any) -> Any:
        a, (b, c) = x
        return a + b * c

    assert fx.symbolic_trace(f)((1, (2, 3))) == 7


BRANCHES: dict[str, Any] = {
    "if": lambda x: x if x.sum() > 0 else -x,
    "not": lambda x: not x,
    "and": lambda x: x and 1,
    "while": lambda x: x if bool(x) else -x,
}
LOOPS: dict[str, Any] = {
    "for": lambda x: [y + 1 for y in x],
    "star": lambda x: torch.cat([*x]),
    "in": lambda x: 3 in x,
    "double star": lambda x: dict(**x),
}


@pytest.mark.parametrize("program", BRANCHES.values(), ids=list(BRANCHES))
def test_a_branch_on_data_is_refused_at_its_line(program: Any) -> None:
    line = program.__code__.co_firstlineno
    with pytest.raises(TraceError, match="cannot be used as inputs to control flow") as refused:
        fx.symbolic_trace(program)
    assert f"{__file__}:{line}, in <lambda>: " in str(refused.value)


@pytest.mark.parametrize("program", LOOPS.values(), ids=list(LOOPS))
def test_a_loop_over_data_is_refused_at_its_line(program: Any) -> None:
    line = program.__code__.co_firstlineno
    with pytest.raises(TraceError, match="Proxy object cannot be iterated") as refused:
        fx.symbolic_trace(program)
    assert f"{__file__}:{line}, in " in str(refused.value)


def test_an_error_names_the_innermost_function_of_the_program() -> None:
    def inner(x: Any) -> Any:
        assert x.shape[0] == 2, "bad"
        return x

    with pytest.raises(TraceError, match=r"in inner: assert x.shape\[0\] == 2"):
        fx.symbolic_trace(lambda x: inner(x) + 1)


@pytest.mark.parametrize(
    ("program", "kind", "text"),
    [
        (lambda x: len(x), RuntimeError, "'len' is not supported in symbolic tracing by default"),
        (lambda x: int(x), TypeError, "not 'Proxy'"),
        (lambda x: range(x), TypeError, "'Proxy' object cannot be interpreted as an integer"),
        (lambda x: x.foo(object()), NotImplementedError, "argument of type: <class 'object'>"),
        (lambda x: x.foo({1, 2}), NotImplementedError, "argument of type: <class 'set'>"),
        (lambda x: x.foo({x: 1}), RuntimeError, "Keys for dictionaries .* cannot contain a Node. Got key: x"),
        (lambda x: operator.setitem(x, 0, 1), TypeError, "does not support item assignment"),
        (3, AssertionError, "Expected FunctionType, got <class 'int'>"),
    ],
)
def test_what_cannot_be_traced(program: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        fx.symbolic_trace(program)


def test_modules_and_parameters_of_nobody_are_refused() -> None:
    class Hidden(nn.Module):
        def __init__(self, what: Any) -> None:
            super().__init__()
            self.what = [what]

        def forward(self, x: Any) -> Any:
            return self.what[0](x) if isinstance(self.what[0], nn.Module) else x + self.what[0]

    with pytest.raises(NameError, match="module is not installed as a submodule"):
        fx.symbolic_trace(Hidden(nn.Linear(2, 2)))
    with pytest.raises(NameError, match="parameter is not a member of this module"):
        fx.symbolic_trace(Hidden(nn.Parameter(torch.ones(2))))


def test_a_failed_trace_leaves_modules_as_they_were() -> None:
    before = nn.Module.__call__, nn.Module.__getattr__
    with pytest.raises(TraceError):
        fx.symbolic_trace(lambda x: 1 if x else 2)
    assert (nn.Module.__call__, nn.Module.__getattr__) == before
    assert nn.Linear(2, 2)(torch.ones(2)).shape == (2,)


def test_concrete_arguments_choose_a_branch_and_are_checked() -> None:
    def f(x: Any, flip: bool, extra: Any = None) -> Any:
        return -x if flip and extra is None else x

    traced = fx.symbolic_trace(f, concrete_args={"flip": True, "extra": None})
    x = torch.ones(1)
    assert traced(x, True).tolist() == [-1]
    with pytest.raises(AssertionError, match="flip has been specialized to have value True"):
        traced(x, False)
    with pytest.raises(AssertionError, match="extra has been specialized to have value None"):
        traced(x, True, x)


def test_concrete_trees_of_arguments_are_taken_and_given() -> None:
    def f(x: Any, n: int) -> Any:
        return {"sum": x["a"] + x["b"][0], "all": [x["b"][i] for i in range(n)]}

    traced = fx.symbolic_trace(f, concrete_args={"x": {"a": fx.PH, "b": [fx.PH, fx.PH]}, "n": 2})
    given = {"a": torch.ones(1), "b": [torch.zeros(1), torch.ones(1) * 3]}
    out = traced(given, 2)
    assert out["sum"].tolist() == [1]
    assert [t.item() for t in out["all"]] == [0, 3]
    assert fx.Interpreter(traced).run(given, 2)["sum"].tolist() == [1]
    assert fx.symbolic_trace(traced, concrete_args={"n": 2})(given, 2)["sum"].tolist() == [1]


@fx.wrap
def leaf(x: Any, k: int = 2) -> Any:
    return x * k if x.sum() > 0 else x


fx.wrap("sum")


def test_wrapped_functions_are_leaves() -> None:
    traced = fx.symbolic_trace(lambda x: leaf(x, k=3) + sum(x))
    assert traced(torch.ones(2)).tolist() == [5, 5]
    assert leaf(-torch.ones(2)).tolist() == [-1, -1]
    assert sum([1, 2]) == 3
    called = [n.target for n in traced.graph.nodes if n.op == "call_function"]
    assert [getattr(t, "__wrapped__", t) for t in called] == [leaf, sum, operator.add]
    again = fx.symbolic_trace(traced)
    assert nodes(again.graph) == nodes(traced.graph)


def test_wrap_refuses_what_it_cannot_find() -> None:
    with pytest.raises(NotImplementedError, match="top level of a module"):
        fx.wrap("leaf")
    with pytest.raises(RuntimeError, match="Unsupported type for global function"):
        fx.wrap(3)  # type: ignore[type-var]


def test_functions_of_math_are_leaves() -> None:
    traced = fx.symbolic_trace(lambda x: math.sqrt(x) + 1)
    assert traced(9) == 4.0
    assert math.sqrt(16) == 4


def test_a_tracer_chooses_leaves() -> None:
    class AllLeaves(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return True

    class NoLeaves(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return False

    net = Net().eval()
    assert nodes(AllLeaves().trace(net))[3] == ("call_module", "layers")
    small = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2, bias=False))
    graph = NoLeaves().trace(small)
    assert not graph.find_nodes(op="call_module")
    assert [n.target for n in graph.find_nodes(op="get_attr")] == ["0.weight", "0.bias", "2.weight"]
    x = torch.randn(2, 3)
    assert torch.equal(fx.GraphModule(small, graph)(x), small(x))


def test_a_tracer_sees_every_call() -> None:
    class Scales(fx.Tracer):
        def create_proxy(
            self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **more: Any
        ) -> Any:
            made = super().create_proxy(kind, target, args, kwargs, *rest, **more)
            made.node.meta["scale"] = len(made.node.all_input_nodes)
            return made

    graph = Scales().trace(lambda x, y: torch.relu(x) + y)
    assert [n.meta.get("scale") for n in graph.nodes] == [0, 0, 1, 2, None]


def test_a_tracer_knows_values() -> None:
    class Positive(fx.Tracer):
        def to_bool(self, obj: fx.Proxy) -> bool:
            return True

        def iter(self, obj: fx.Proxy) -> Any:
            return iter([obj[0], obj[1]])

    graph = Positive().trace(lambda x: [y + 1 for y in x] if x.sum() > 0 else x)
    assert [name for _, name in nodes(graph)] == [
        "x",
        "sum_1",
        "gt",
        "getitem",
        "getitem_1",
        "add",
        "add_1",
        "output",
    ]


def test_constant_shapes_of_parameters() -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 3))

        def forward(self, x: Any) -> Any:
            return x + self.weight if self.weight.shape[0] == 2 and self.weight.dim() == 2 else x

    graph = fx.Tracer(param_shapes_constant=True).trace(Sized())
    assert [name for _, name in nodes(graph)] == ["x", "weight", "add", "output"]
    with pytest.raises(TraceError):
        fx.symbolic_trace(Sized())


def test_buffers_as_proxies() -> None:
    class Buffered(fx.Tracer):
        proxy_buffer_attributes = True

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.ones(1))

        def forward(self, x: Any) -> Any:
            return x + self.shift * 2 - self.shift

    names = lambda tracer: [name for _, name in nodes(tracer.trace(Shifted()))]
    assert names(Buffered()) == ["x", "shift", "mul", "add", "sub", "output"]
    assert names(fx.Tracer()) == ["x", "_tensor_constant0", "add", "shift", "sub", "output"]


def test_where_steps_were_recorded() -> None:
    class Located(fx.Tracer):
        record_stack_traces = True

    graph = Located().trace(Attention(8, 2))
    traces = {node.name: node.stack_trace for node in graph.nodes}
    assert "self.qkv(self.norm(x)).chunk(3, dim=-1)" in traces["chunk"]
    assert "warptape/fx" not in traces["chunk"]
    assert traces["output"] is None
    module = fx.GraphModule(Attention(8, 2), graph)
    again = fx.Transformer(module).transform()
    assert next(n for n in again.graph.nodes if n.name == "chunk").stack_trace == traces["chunk"]


def test_proxies_of_one_graph_build_it_by_hand() -> None:
    graph = fx.Graph()
    x = fx.Proxy(graph.placeholder("x"))
    y = torch.relu(x).neg() + 1
    graph.output(y.node)
    assert fx.GraphModule({}, graph)(torch.ones(1)).tolist() == [0]
    assert isinstance(y.tracer, GraphAppendingTracer)
    assert repr(y) == "Proxy(add)"
    assert repr(y.shape) == "Proxy(getattr_1)"
    with pytest.raises(RuntimeError, match="Found multiple different tracers"):
        torch.add(y, fx.Proxy(fx.Graph().placeholder("z")))


Pair = collections.namedtuple("Pair", "a b")


def test_named_tuples_stay_such() -> None:
    traced = fx.symbolic_trace(lambda x: Pair(x + 1, [x]))
    out = traced(1)
    assert isinstance(out, Pair)
    assert out == Pair(2, [1])
