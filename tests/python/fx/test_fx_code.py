"""warptape.fx: the Python source of graphs, graphs as text, and GraphModule."""

from __future__ import annotations

import copy
import enum
import inspect
import linecache
import operator
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Optional

import pytest
import warptape as torch
from warptape import fx, nn

F = nn.functional


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 5)
        self.seq = nn.Sequential(nn.ReLU(), nn.Tanh())
        self.p = nn.Parameter(torch.ones(3, 4))

    def forward(self, x: Any) -> Any:
        return self.seq(self.lin(x + self.p).clamp(min=0.0, max=1.0))


def code(program: Any) -> str:
    return fx.symbolic_trace(program).code


def test_code_of_a_module() -> None:
    assert (
        code(Small()).replace("typing_Any", "Any")
        == """


def forward(self, x : Any) -> Any:
    p = self.p
    add = x + p;  x = p = None
    lin = self.lin(add);  add = None
    clamp = lin.clamp(min = 0.0, max = 1.0);  lin = None
    seq_0 = getattr(self.seq, "0")(clamp);  clamp = None
    seq_1 = getattr(self.seq, "1")(seq_0);  seq_0 = None
    return seq_1
    """
    )


def test_code_of_a_function() -> None:
    def f(input, y=None, *args, flag=True, **kw):  # type: ignore[no-untyped-def]
        a = torch.cat([input, args[0]], dim=1)[:, 2:4, None, ...]
        b = abs(-a) if flag is not None else a
        c = (2 - b).to(torch.float16).to(torch.device("cpu"))
        kw["unused"]
        return {"a": c.T, "b": [F.relu(c, inplace=True), (c,)], "i": float("inf"), "s": slice(None, c, 2)}

    assert (
        code(f)
        == """


def forward(self, input, y = None, flag = True, *args, **kw):
    input_1 = input
    _args = args
    _kw = kw
    getitem = _args[0];  _args = None
    cat = torch.cat([input_1, getitem], dim = 1);  input_1 = getitem = None
    getitem_1 = cat[(slice(None, None, None), slice(2, 4, None), None, Ellipsis)];  cat = None
    neg = -getitem_1;  getitem_1 = None
    abs_1 = _operator_abs(neg);  neg = None
    sub = 2 - abs_1;  abs_1 = None
    to = sub.to(torch.float16);  sub = None
    to_1 = to.to(device(type='cpu'));  to = None
    getitem_2 = _kw['unused'];  _kw = getitem_2 = None
    relu = torch.nn.functional.relu(to_1, inplace = True)
    getattr_1 = to_1.T
    return {'a': getattr_1, 'b': [relu, (to_1,)], 'i': inf, 's': slice(None, to_1, 2)}
    """
    )


KIND = Optional[torch.Tensor]  # noqa: UP045


class Color(enum.Enum):
    RED = 1


def test_code_of_nodes_made_by_hand() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x", type_expr=KIND, default_value="hi")
    graph.call_function(operator.iadd, (x, 1))
    graph.call_function(operator.setitem, (x, 0, Color.RED))
    graph.call_function(getattr, (x, "a b"))
    graph.call_function(getattr, (x, "shape", 3))
    graph.call_function(operator.pow, (-3, x))
    graph.call_function(max, (x, 1))
    graph.call_method("foo", (x,), {"z": [1, {"k": (1,)}], "c": 1 + 2j})
    graph.output(x, type_expr=int)
    # From Python 3.14 on Optional[X] is the same as X | None.
    src = graph.python_code("self").src.replace(
        "torch.Tensor|NoneType", "typing_Union[torch.Tensor,NoneType]"
    )
    assert (
        src
        == """


def forward(self, x : typing_Union[torch.Tensor,NoneType] = 'hi') -> int:
    x += 1;  iadd = x;  iadd = None
    x[0] = Color.RED;  setitem = x;  setitem = None
    getattr_1 = getattr(x, 'a b');  getattr_1 = None
    getattr_2 = getattr(x, 'shape', 3);  getattr_2 = None
    pow_1 = (-3) ** x;  pow_1 = None
    max_1 = max(x, 1);  max_1 = None
    foo = x.foo(z = [1, {'k': (1,)}], c = (1+2j));  foo = None
    return x
    """
    )
    assert graph.python_code("self").globals["Color"] is Color


def test_code_without_nodes_and_without_a_result() -> None:
    graph = fx.Graph()
    assert graph.python_code("self").src == "\n\n\ndef forward(self):\n    pass\n    "
    assert str(graph) == "graph():"
    graph.output(None)
    assert graph.python_code("self").src == "\n\n\ndef forward(self):\n    return None\n    "


@fx.wrap
def leaf(x: Any) -> Any:
    return x


def test_code_keeps_leaves() -> None:
    made = code(lambda x: leaf(x))
    name = f"{__name__.replace('.', '_')}_leaf"
    assert made.startswith(f'\ntorch.fx._symbolic_trace.wrap("{name}")\n\ndef forward(self, x):\n')
    assert f"leaf = {name}(x);  x = None" in made


def test_names() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    make = lambda name: graph.create_node("call_function", torch.relu, (x,), name=name).name
    wanted = [
        "relu",
        "relu_3",
        "relu",
        "relu_1",
        "b_2",
        "b",
        "b_2",
        "a.b.c",
        "abs",
        "abs",
        "1bad!",
        "for",
        "torch",
        "x",
        "self",
    ]
    assert [make(name) for name in wanted] == (
        [
            "relu",
            "relu_3",
            "relu_4",
            "relu_1",
            "b_2",
            "b",
            "b_3",
            "a_b_c",
            "abs_1",
            "abs_2",
            "_1bad_",
            "for_1",
            "torch_1",
            "x_1",
            "self",
        ]
    )
    called = ("__call__", "toDevice", "add_", "X")
    assert [graph.call_method(n, (x,)).name for n in called] == ["call", "to_device", "add_", "x_2"]
    functions = (nn.Linear, operator.getitem, len, lambda y: y, torch.linalg.norm)
    names = [graph.call_function(f, (x,)).name for f in functions]
    assert names == ["linear", "getitem", "len_1", "_lambda_", "linalg_norm"]


def test_a_graph_as_text() -> None:
    def f(x: torch.Tensor, k: int = 3) -> Any:
        return torch.add(x, k, alpha=2).view(x.shape[0], -1).to("cpu"), leaf(x)

    home = __name__
    assert (
        str(fx.symbolic_trace(f).graph)
        == f"""graph():
    %x : torch.Tensor [num_users=3] = placeholder[target=x]
    %k : int [num_users=1] = placeholder[target=k](default=3)
    %add : [num_users=1] = call_function[target=torch.add](args = (%x, %k), kwargs = {{alpha: 2}})
    %getattr_1 : [num_users=1] = call_function[target=builtins.getattr](args = (%x, shape), kwargs = {{}})
    %getitem : [num_users=1] = call_function[target=operator.getitem](args = (%getattr_1, 0), kwargs = {{}})
    %view : [num_users=1] = call_method[target=view](args = (%add, %getitem, -1), kwargs = {{}})
    %to : [num_users=1] = call_method[target=to](args = (%view, cpu), kwargs = {{}})
    %leaf : [num_users=1] = call_function[target={home}.leaf](args = (%x,), kwargs = {{}})
    return (to, leaf)"""
    )


def test_a_graph_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    fx.symbolic_trace(lambda x: x.relu()).graph.print_tabular()
    assert capsys.readouterr().out.splitlines() == [
        "opcode       name    target  args     kwargs",
        "-----------  ------  ------  -------  ------",
        "placeholder  x       x       ()       {}",
        "call_method  relu    relu    (x,)     {}",
        "output       output  output  (relu,)  {}",
    ]


def test_a_module_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    traced = fx.symbolic_trace(Small())
    assert type(traced).__name__ == "Small"
    assert repr(traced).startswith("Small(\n  (lin): Linear(")
    assert str(traced) == "\n".join(
        [
            repr(traced),
            traced.code,
            "# To see more debug info, please use `graph_module.print_readable()`",
        ]
    )
    text = fx.symbolic_trace(lambda x: x + 1).print_readable()
    assert capsys.readouterr().out == text + "\n"
    assert text == (
        "class <lambda>(torch.nn.Module):\n    def forward(self, x):\n"
        "        # No stacktrace found for following nodes\n        add = x + 1;  x = None\n"
        "        return add\n"
    )


def test_source_is_found_by_inspect_and_tracebacks() -> None:
    traced = fx.symbolic_trace(Small())
    file = traced.forward.__code__.co_filename
    linecache.checkcache()
    assert "".join(linecache.getlines(file)) == traced.code
    assert inspect.getsource(type(traced).forward).startswith("def forward(self, x")
    try:
        traced(torch.ones(3, 7))
    except RuntimeError as error:
        lines = [f.line for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    assert lines == ["add = x + p;  x = p = None"]
    traced.recompile()
    assert linecache.getlines(file) == []  # the source of what is gone is dropped


def test_edits_take_effect_with_recompile() -> None:
    traced = fx.symbolic_trace(lambda x: torch.relu(x))
    node = traced.graph.find_nodes(op="call_function", target=torch.relu)[0]
    node.target = torch.neg
    assert traced(torch.ones(1)).item() == 1
    assert "torch.neg(x)" in traced.recompile().src
    assert traced(torch.ones(1)).item() == -1
    assert fx.symbolic_trace(lambda x: torch.relu(x))(torch.ones(1)).item() == 1


def test_roots() -> None:
    graph = fx.symbolic_trace(Small()).graph
    with pytest.raises(AttributeError, match=r"no attribute '(p|lin)'"):
        fx.GraphModule(nn.Module(), graph)
    with pytest.raises(RuntimeError, match="Node p referenced target p but that target was not provided"):
        fx.GraphModule({"lin": nn.Linear(4, 5)}, graph)
    with pytest.raises(RuntimeError, match="Unsupported type 3 passed for root!"):
        fx.GraphModule(3, graph)  # type: ignore[arg-type]
    parts = {"lin": nn.Linear(4, 5), "seq.0": nn.ReLU(), "seq.1": nn.ReLU(), "p": torch.zeros(3, 4)}
    made = fx.GraphModule(parts, graph, "Made")
    assert type(made).__name__ == "Made"
    assert dict(made.named_buffers())["p"] is parts["p"]
    assert made.graph.owning_module is made
    assert made(torch.ones(3, 4)).shape == (3, 5)
    with pytest.raises(AssertionError, match="Expected a Graph instance, but got <class 'int'>"):
        made.graph = 3  # type: ignore[assignment]


def test_parameters_come_in_the_order_of_their_use() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.lin, self.unused = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
            self.seq = nn.Sequential(nn.Linear(2, 2))

        def forward(self, x: Any) -> Any:
            return self.last(self.lin(x * self.lin.weight.sum()) + self.seq(x) * self.seq[0].bias)

    tied = Tied()
    traced = fx.symbolic_trace(tied)
    assert [name for name, _ in traced.named_children()] == ["lin", "seq", "last"]
    assert traced.lin is tied.lin
    assert "lin.weight" in traced.state_dict()
    x = torch.randn(2)
    assert torch.equal(traced(x), tied(x))


def test_each_module_has_its_own_forward() -> None:
    class Mine(fx.GraphModule):
        pass

    one = Mine({}, fx.symbolic_trace(lambda x: x + 1).graph)
    other = type(one)({}, fx.symbolic_trace(lambda x: x + 2).graph)
    assert (one(1), other(1)) == (2, 3)
    assert isinstance(other, Mine)


def test_submodules_are_added_and_deleted() -> None:
    traced = fx.symbolic_trace(Small())
    assert traced.add_submodule("a.b.c", nn.ReLU())
    assert isinstance(traced.a.b.c, nn.ReLU)
    assert not traced.add_submodule("p.c", nn.ReLU())
    assert traced.delete_submodule("a.b.c")
    assert not traced.delete_submodule("a.b.c")
    assert not traced.delete_submodule("p")
    traced.delete_all_unused_submodules()
    assert [name for name, _ in traced.named_modules()] == ["", "lin", "seq", "seq.0", "seq.1"]
    traced.graph.call_module("lin")
    with pytest.raises(AttributeError, match="nothing"):
        traced.graph.call_module("nothing")
    with pytest.warns(UserWarning, match="no underlying reference in the owning GraphModule"):
        traced.graph.get_attr("nothing")


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(how: Any) -> None:
    traced = fx.symbolic_trace(Small())
    traced.register_buffer("unused", torch.ones(1), persistent=False)
    traced.meta["note"] = [1]
    copied = how(traced)
    x = torch.randn(3, 4)
    assert torch.equal(copied(x), traced(x))
    assert copied.code == traced.code
    assert copied.meta == {"note": [1]}
    assert (copied.lin is traced.lin) == (how is copy.copy)
    if how is not copy.copy:
        assert copied.graph.owning_module is copied
        next(n for n in copied.graph.nodes if n.name == "clamp").kwargs = {"min": 0.5}
        copied.recompile()
        assert traced.code != copied.code
        assert torch.equal(traced(x), how(traced)(x))


def test_a_pickle_has_functions_methods_and_leaves() -> None:
    traced = fx.symbolic_trace(lambda x: leaf(F.gelu(x)).sum(dim=0)[0:1] + torch.tensor([2.0]))
    loaded = pickle.loads(pickle.dumps(traced))
    assert loaded.code == traced.code
    x = torch.randn(3, 2)
    assert torch.equal(loaded(x), traced(x))


def test_a_saved_module_is_loaded(tmp_path: Path) -> None:
    traced = fx.symbolic_trace(Small())
    torch.save(traced, tmp_path / "m.pt")
    loaded = torch.load(tmp_path / "m.pt", weights_only=False)
    x = torch.randn(3, 4)
    assert torch.equal(loaded(x), traced(x))


def test_a_traced_module_is_a_module() -> None:
    traced = fx.symbolic_trace(Small())
    traced.load_state_dict(Small().state_dict())
    seen = []
    traced.lin.register_forward_hook(lambda m, args, out: seen.append(tuple(out.shape)))
    outer = fx.symbolic_trace(nn.Sequential(traced, nn.ReLU()))
    assert outer(torch.ones(3, 4)).shape == (3, 5)
    assert seen == [(3, 5)]
    outer.double()
    assert next(outer.parameters()).dtype is torch.float64
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        traced()


PROGRAM = """
import torch, torch.fx
from torch.fx import passes
from torch.fx.node import Target, map_arg
from torch.fx.passes.shape_prop import ShapeProp
from torch.fx.proxy import TraceError

traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))
ShapeProp(traced).propagate(torch.ones(4, 2))
print(*(n.meta["tensor_meta"].shape[1] for n in traced.graph.nodes))
from torch.fx import sketches
"""


def test_programs_import_it_as_torch_fx() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "warptape.torch", "-c", PROGRAM], capture_output=True, text=True
    )
    assert ran.stdout == "2 3 3 3\n"
    assert "warptape has no torch.fx.sketches yet" in ran.stderr
