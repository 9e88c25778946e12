"""warptape.fx: graphs built and edited node by node."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import pytest
import warptape as torch
from warptape import fx, nn
from warptape.fx.immutable_collections import immutable_dict, immutable_list
from warptape.fx.node import map_aggregate, map_arg

F = nn.functional


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.relu = nn.Linear(2, 2), nn.ReLU()
        self.p = nn.Parameter(torch.ones(2))

    def forward(self, x: Any) -> Any:
        return self.relu(self.lin(x) + self.p)


def named(graph: fx.Graph) -> dict[str, fx.Node]:
    return {node.name: node for node in graph.nodes}


def test_a_graph_is_built_by_hand() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    w = graph.get_attr("w")
    y = graph.call_module("lin", (x,))
    z = graph.call_function(torch.add, (y, w), {"alpha": 2})
    out = graph.output(graph.call_method("neg", (z,)))
    graph.lint()
    assert [n.op for n in graph.nodes] == (
        ["placeholder", "get_attr", "call_module", "call_function", "call_method", "output"]
    )
    assert len(graph.nodes) == 6
    assert [n.name for n in reversed(graph.nodes)] == ["output", "neg", "add", "lin", "w", "x"]
    assert graph.output_node() is out
    assert (z.all_input_nodes, list(y.users), z.prev, z.next.name) == ([y, w], [z], y, "neg")
    module = fx.GraphModule({"w": torch.ones(2), "lin": nn.Identity()}, graph)
    assert module(torch.ones(2)).tolist() == [-3, -3]


def test_an_op_is_replaced() -> None:
    traced = fx.symbolic_trace(Small())
    for node in traced.graph.find_nodes(op="call_function", target=operator.add):
        with traced.graph.inserting_after(node):
            new = traced.graph.call_function(torch.sub, node.args, node.kwargs)
        assert node.replace_all_uses_with(new) == [named(traced.graph)["relu"]]
        traced.graph.erase_node(node)
    traced.graph.lint()
    traced.recompile()
    x = torch.randn(2)
    assert torch.equal(traced(x), torch.relu(traced.lin(x) - traced.p))


def test_a_node_is_put_behind_another() -> None:
    graph = fx.symbolic_trace(Small()).graph
    nodes = named(graph)
    with graph.inserting_after(nodes["lin"]):
        neg = graph.call_function(torch.neg, (nodes["lin"],))
    nodes["lin"].replace_all_uses_with(neg, lambda user: user is not neg)
    assert [n.name for n in graph.nodes] == ["x", "lin", "neg", "p", "add", "relu", "output"]
    with graph.inserting_before():
        graph.placeholder("first")
    graph.placeholder("last")
    assert [n.name for n in graph.nodes][:2] + [n.name for n in graph.nodes][-1:] == ["first", "x", "last"]
    with graph.inserting_before(neg):
        a, b = graph.call_function(F.relu, (nodes["lin"],)), graph.call_function(F.relu, (nodes["lin"],))
    assert (a.next, b.next) == (b, neg)


def test_nodes_move() -> None:
    graph = fx.symbolic_trace(lambda x: torch.neg(x) + torch.relu(x)).graph
    nodes = named(graph)
    nodes["neg"].append(nodes["neg"])
    nodes["relu"].append(nodes["neg"])
    assert [n.name for n in graph.nodes] == ["x", "relu", "neg", "add", "output"]
    nodes["relu"].prepend(nodes["add"])
    with pytest.raises(
        RuntimeError, match="Argument 'neg' of Node 'add' was used before it has been defined"
    ):
        graph.lint()
    with pytest.raises(AssertionError, match="Attempting to move a Node into a different Graph"):
        nodes["relu"].prepend(fx.Graph().placeholder("y"))
    with pytest.raises(AssertionError, match="Node to insert before is not in graph"):
        graph.inserting_before(fx.Graph().placeholder("y"))


def test_a_node_with_users_is_not_erased() -> None:
    graph = fx.symbolic_trace(Small()).graph
    nodes = named(graph)
    with pytest.raises(
        RuntimeError, match=r"Tried to erase Node lin but it still had 1 users in the graph: \{add"
    ):
        graph.erase_node(nodes["lin"])
    with pytest.raises(RuntimeError, match="Attempting to remove y from wrong graph!"):
        graph.erase_node(fx.Graph().placeholder("y"))
    nodes["output"].args = (nodes["lin"],)
    graph.erase_node(nodes["relu"])
    with pytest.warns(UserWarning, match="already erased"):
        graph.erase_node(nodes["relu"])
    assert len(graph.nodes) == 5
    assert not nodes["add"].users


def test_nodes_are_erased_while_one_goes_over_them() -> None:
    graph = fx.symbolic_trace(lambda x: x.neg().relu().exp()).graph
    graph.output_node().args = (next(iter(graph.nodes)),)
    for node in reversed(graph.nodes):
        if node.op == "call_method":
            graph.erase_node(node)
    assert [n.name for n in graph.nodes] == ["x", "output"]


def test_arguments_are_changed() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    cat = graph.call_function(torch.cat, ([x, x],), {"dim": 1})
    assert list(x.users) == [cat]
    assert isinstance(cat.args[0], immutable_list)
    assert isinstance(cat.kwargs, immutable_dict)
    cat.replace_input_with(x, y)
    assert (cat.args, list(x.users), list(y.users)) == (([y, y],), [], [cat])
    cat.update_arg(0, [x, y])
    cat.update_kwarg("out", x)
    cat.insert_arg(1, 5)
    assert (cat.args, cat.kwargs) == (([x, y], 5), {"dim": 1, "out": x})
    assert cat.all_input_nodes == [x, y]
    with pytest.raises(IndexError):
        cat.update_arg(5, 1)
    for change in (lambda: cat.args[0].append(3), lambda: cat.kwargs.update(dim=3)):
        with pytest.raises(TypeError, match="object does not support mutation"):
            change()
    assert cat.args[0] == [x, y]


def test_impossible_nodes_are_refused() -> None:
    graph = fx.Graph()
    with pytest.raises(AssertionError, match="op 'foo' is not in _legal_ops"):
        graph.create_node("foo", "x")
    with pytest.raises(ValueError, match="a Callable is expected"):
        graph.call_function("relu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a str is expected"):
        graph.call_method(torch.relu)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="args must be a tuple"):
        graph.create_node("call_function", torch.relu, [1])  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="target must not be None for call_function op"):
        graph.find_nodes(op="call_function")
    assert len(graph.nodes) == 0


def test_lint_finds_foreign_nodes_and_missing_targets() -> None:
    graph = fx.Graph()
    graph.call_function(torch.relu, (fx.Graph().placeholder("x"),))
    with pytest.raises(RuntimeError, match="Argument 'x' of Node 'relu' does not belong to this Graph"):
        graph.lint()
    traced = fx.symbolic_trace(Small())
    del traced.lin
    with pytest.raises(RuntimeError, match="Node lin target lin references nonexistent attribute"):
        traced.graph.lint()
    traced.lin = 3
    with pytest.raises(RuntimeError, match="does not reference an"):
        traced.graph.lint()


def test_dead_code_is_eliminated_but_not_what_has_effects() -> None:
    @fx.has_side_effect
    def log(x: Any) -> None:
        """Writes something."""

    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.placeholder("unused")
    dead = graph.call_function(torch.neg, (graph.call_function(torch.relu, (x,)),))
    graph.call_function(torch._assert, (x, "no"))
    graph.call_function(operator.setitem, (x, 0, 1))
    graph.call_function(torch.rand, (2,))
    graph.call_function(log, (x,))
    graph.output(x)
    assert not dead.is_impure()
    assert graph.eliminate_dead_code()
    assert not graph.eliminate_dead_code()
    assert [n.name for n in graph.nodes] == ["x", "unused", "_assert", "setitem", "rand", "log", "output"]
    assert graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output"))
    assert [n.name for n in graph.nodes] == ["x", "unused", "output"]


def test_dead_modules_go_unless_they_say_otherwise() -> None:
    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.ReLU(), nn.ReLU()
            self.b._is_impure = True

        def forward(self, x: Any) -> Any:
            self.a(x), self.b(x)
            return x

    traced = fx.symbolic_trace(Watched())
    traced.graph.eliminate_dead_code()
    assert [n.name for n in traced.graph.nodes] == ["x", "b", "output"]


def test_graphs_are_copied_into_graphs() -> None:
    inner = fx.symbolic_trace(lambda a, b: torch.relu(a) + b).graph
    graph = fx.Graph()
    x = graph.placeholder("x")
    places = inner.find_nodes(op="placeholder")
    copies = {places[0]: x, places[1]: x}
    result = graph.graph_copy(inner, copies)
    graph.output(result)
    graph.lint()
    assert [n.name for n in graph.nodes] == ["x", "relu", "add", "output"]
    assert copies[named(inner)["relu"]] is named(graph)["relu"]
    assert fx.GraphModule({}, graph)(torch.ones(1)).item() == 2
    assert [n.name for n in inner.nodes] == ["a", "b", "relu", "add", "output"]


def test_deep_copies_and_pickles_are_apart() -> None:
    traced = fx.symbolic_trace(Small())
    first = next(iter(traced.graph.nodes))
    first.meta["me"] = first
    copied = copy.deepcopy(traced.graph)
    assert str(copied) == str(traced.graph)
    place = next(iter(copied.nodes))
    assert place is not first
    assert place.meta["me"] is place
    copied.lint()
    loaded = pickle.loads(pickle.dumps(traced.graph))
    assert str(loaded) == str(traced.graph)
    loaded.lint()


def test_a_long_graph_is_copied() -> None:
    graph = fx.Graph()
    node = graph.placeholder("x")
    for _ in range(3000):
        node = graph.call_function(torch.neg, (node,))
    graph.output(node)
    assert len(copy.deepcopy(graph).nodes) == 3002
    assert len(pickle.loads(pickle.dumps(graph)).nodes) == 3002


def test_map_arg_goes_through_containers() -> None:
    graph = fx.Graph()
    n = graph.placeholder("n")
    assert map_arg({"a": [n, (n, 2)], "b": slice(n, 1)}, lambda x: x.name) == {
        "a": ["n", ("n", 2)],
        "b": slice("n", 1),
    }
    assert map_aggregate([1, (2,)], lambda x: x + 1) == [2, (3,)]
    with pytest.raises(AssertionError, match="fn must be a callable"):
        map_arg(n, 3)  # type: ignore[arg-type]


def test_immutable_collections_are_copied_and_pickled() -> None:
    for value in (immutable_list([1, [2]]), immutable_dict({"a": [1]})):
        for made in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            assert made == value
            assert type(made) is type(value)
    mapped = torch.utils._pytree.tree_map(lambda x: x + 1, immutable_dict({"a": immutable_list([1])}))
    assert mapped == {"a": [2]}
    assert isinstance(mapped["a"], immutable_list)


def test_metadata_follows_on_request() -> None:
    graph = fx.symbolic_trace(lambda x: x.neg()).graph
    neg = named(graph)["neg"]
    neg.meta["note"] = 1
    with graph.inserting_after(neg):
        new = graph.node_copy(neg)
    assert new.meta == {"note": 1}
    with pytest.raises(AssertionError, match=r"already has \.meta keys"):
        neg.replace_all_uses_with(new, propagate_meta=True)
    new.meta.clear()
    neg.replace_all_uses_with(new, propagate_meta=True)
    assert (new.meta, graph.output_node().args) == ({"note": 1}, (new,))
