"""normalize_function and normalize_module: arguments by name, as PyTorch 2.13 gives them."""

from __future__ import annotations

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import fx, nn
from warptape.fx.operator_schemas import normalize_function, normalize_module

X = torch.ones(2)


@pytest.mark.parametrize(
    "target, args, kwargs, expected",
    [
        (F.relu, (X,), {}, {"input": X, "inplace": False}),
        (torch.relu, (X,), {}, {"input": X}),
        (F.linear, (X, X), {}, {"input": X, "weight": X, "bias": None}),
        (F.dropout, (X,), {"p": 0.3}, {"input": X, "p": 0.3, "training": True, "inplace": False}),
        (F.softmax, (X, 1), {}, {"input": X, "dim": 1, "_stacklevel": 3, "dtype": None}),
        (torch.cat, ([X, X],), {}, {"tensors": [X, X], "dim": 0}),
        (torch.sum, (X,), {"dim": 0}, {"input": X, "dim": 0, "keepdim": False, "dtype": None}),
        (torch.ops.aten.add.Tensor, (X, X), {}, {"input": X, "other": X, "alpha": 1}),
        (torch.mul, (X, 2), {}, {"input": X, "other": 2}),
        (torch.add, (X, X), {"out": X}, {"input": X, "other": X, "alpha": 1, "out": X}),
    ],
)
def test_of_ops(target, args, kwargs, expected):
    found = normalize_function(target, args, kwargs, normalize_to_only_use_kwargs=True)
    assert found.args == () and [*found.kwargs] == [*expected]
    for name, value in expected.items():
        assert found.kwargs[name] is value or found.kwargs[name] == value
    mixed = normalize_function(target, args, kwargs)
    assert len(mixed.args) == len(args) and [*mixed.kwargs] == [*expected][len(args) :]


def test_of_functions():
    def function(a, b=3, *, c=4):
        return a

    assert normalize_function(function, (1,), {}) == ((1,), {"b": 3, "c": 4})
    assert normalize_function(function, (1,), {}, normalize_to_only_use_kwargs=True) == (
        (),
        {"a": 1, "b": 3, "c": 4},
    )
    assert normalize_function(lambda *a: a, (1,)) is None
    with pytest.raises(TypeError, match="too many positional"):
        normalize_function(function, (1, 2, 3))


def test_overloads_are_chosen_by_types():
    assert normalize_function(torch.add, ()) is None
    with pytest.raises(RuntimeError, match=r"match was ambiguous!(.|\n)*dim: "):
        normalize_function(torch.sum, (X,))
    assert normalize_function(torch.sum, (X,), arg_types=(torch.Tensor,)).kwargs["dtype"] is None
    with pytest.raises(RuntimeError, match="ambiguous"):
        normalize_function(torch.conv2d, (X, X))
    found = normalize_function(
        torch.conv2d, (X, X), {"padding": "same"}, (torch.Tensor,) * 2, {"padding": str}
    )
    assert found.kwargs["padding"] == "same"
    assert normalize_function(torch.mul, (X, 2), arg_types=(torch.Tensor, int)).args == (X, 2)
    assert normalize_function(torch.linalg.norm, (X,), arg_types=(str,)) is None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.own = nn.Conv2d(1, 1, 1), fx.Interpreter

    def forward(self, x):
        return F.relu(self.conv(x) + 1)


def test_of_nodes_and_modules():
    traced = fx.symbolic_trace(Net())
    nodes = {str(node.target): node for node in traced.graph.nodes}
    relu = next(node for node in traced.graph.nodes if node.target is F.relu)
    found = relu.normalized_arguments(traced, normalize_to_only_use_kwargs=True)
    assert found.kwargs == {"input": relu.args[0], "inplace": False}
    conv = nodes["conv"].normalized_arguments(traced, normalize_to_only_use_kwargs=True)
    assert conv.kwargs == {"input": nodes["conv"].args[0]}
    assert nodes["x"].normalized_arguments(traced) is None
    assert normalize_module(nn.Sequential(Net()), "0", (X,)) is None  # no class of nn
    with pytest.raises(AttributeError):
        normalize_module(Net(), "missing", (X,))
