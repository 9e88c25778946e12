"""input_gradients: a backward pass in two halves equals one, and runs nothing twice."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as wt
from warptape import nn
from warptape.parallel.pipeline.split_backward import input_gradients
from warptape.utils.checkpoint import checkpoint


def nodes_of(root: Any) -> list[Any]:
    found: dict[int, Any] = {}
    open_ = [root]
    while open_:
        node = open_.pop()
        if node is not None and id(node) not in found:
            found[id(node)] = node
            open_ += [n for n, _ in node.next_functions]
    return list(found.values())


def network() -> nn.Sequential:
    wt.manual_seed(0)
    parts = [nn.Linear(4, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 3), nn.Tanh()]
    return nn.Sequential(*parts).double()


def whole(net: nn.Module, x: wt.Tensor, g: wt.Tensor) -> list[wt.Tensor]:
    trained = [p for p in net.parameters() if p.requires_grad]
    extra = (next(net.parameters()) * 2).sum()
    return list(wt.autograd.grad([net(x), extra], [x, *trained], [g, None]))


def test_two_halves_equal_the_whole_to_the_bit() -> None:
    net = network()
    net[3].bias.requires_grad_(False)
    x = wt.randn(2, 4, dtype=wt.float64, requires_grad=True)
    g = wt.randn(2, 3, dtype=wt.float64)
    extra = (net[0].weight * 2).sum()  # does not lead to x: all of it belongs to the second half
    (gx,), rest = input_gradients([net(x), extra], [x], [g, None])
    assert all(p.grad is None for p in net.parameters())
    rest()
    found = [gx] + [p.grad for p in net.parameters() if p.requires_grad]
    for a, b in zip(found, whole(net, x, g), strict=True):
        assert a.equal(b)
    rest()  # nothing is left
    assert net[0].bias.grad.equal(found[2])


def test_each_node_runs_once_for_each_of_its_gradients() -> None:
    net, calls = network(), {}
    x = wt.randn(2, 4, dtype=wt.float64, requires_grad=True)
    y = net(x)
    for node in nodes_of(y.grad_fn):
        name = node.name()

        def count(inputs: Any, outputs: Any, name: str = name) -> None:
            calls.setdefault(name, []).append(tuple(g is not None for g in inputs))

        node.register_hook(count)
    _, rest = input_gradients([y], [x], [wt.ones_like(y)])
    linear, other = [(True, False, False)], [(True,)]
    first = {"TanhBackward0": other, "GeluBackward0": other}
    first |= {"LinearBackward0": linear * 2, "NativeLayerNormBackward0": linear}
    assert calls == first
    rest()
    for name, seen in (("LinearBackward0", 2), ("NativeLayerNormBackward0", 1)):
        assert calls[name] == linear * seen + [(False, True, True)] * seen
    assert calls["TanhBackward0"] == other and calls["GeluBackward0"] == other
    assert calls["AccumulateGrad"] and len(calls["AccumulateGrad"]) == 6


def test_hooks_of_tensors_run_once() -> None:
    net, seen = network(), []
    x = wt.randn(2, 4, dtype=wt.float64, requires_grad=True)
    hidden = net[0](x)
    hidden.register_hook(lambda g: seen.append(1) or g * 2)
    y = net[1:](hidden)
    _, rest = input_gradients([y], [x], [wt.ones_like(y)])
    rest()
    assert seen == [1]
    (plain,) = wt.autograd.grad(net(x).sum(), [net[0].weight])
    assert net[0].weight.grad.equal(plain * 2)


def test_the_graph_is_freed_and_inputs_are_needed() -> None:
    net = network()
    x = wt.randn(2, 4, dtype=wt.float64, requires_grad=True)
    y = net(x)
    input_gradients([y], [x], [wt.ones_like(y)])
    with pytest.raises(RuntimeError, match="second time"):
        input_gradients([y], [x], [wt.ones_like(y)])
    with pytest.raises(RuntimeError, match="expected inputs"):
        input_gradients([net(x)], [], [None])


def test_an_output_that_another_one_uses() -> None:
    """It leads to parameters alone and is a root too: its own gradient and the other's both count."""
    w = wt.tensor([2.0, 3.0], dtype=wt.float64, requires_grad=True)
    x = wt.tensor([5.0, 7.0], dtype=wt.float64, requires_grad=True)
    a = w * w
    b = a * x
    g = wt.ones(2, dtype=wt.float64)
    (gx,), rest = input_gradients([a, b], [x], [g, g])
    rest()
    assert gx.tolist() == [4.0, 9.0]
    assert w.grad.tolist() == [2 * 2.0 * (1 + 5.0), 2 * 3.0 * (1 + 7.0)]


def test_a_checkpointed_region_in_two_halves() -> None:
    net, x = network(), wt.randn(2, 4, dtype=wt.float64, requires_grad=True)
    g = wt.randn(2, 3, dtype=wt.float64)
    y = checkpoint(net, x, use_reentrant=False)
    (gx,), rest = input_gradients([y], [x], [g])
    rest()
    expected = wt.autograd.grad([net(x)], [x, *net.parameters()], [g])
    for a, b in zip([gx, *(p.grad for p in net.parameters())], expected, strict=True):
        assert a.equal(b)
